// Memory for long blocks that the other processes of this node can map: what a rank has computed is then read
// from where it lies, and results are written to where they go, by plain loads and stores.
#pragma once

#if defined(__linux__)
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>

namespace spmdx {

[[noreturn]] inline void cannot(const char* what, int error) {
    throw std::runtime_error(std::string("cannot ") + what + ": " + std::strerror(error));
}

// A file mapped to the end of the process. Pages that nobody has written to take no memory.
inline char* map_file(int file, int64_t bytes) {
#if defined(__linux__)
    void* const place =
        mmap(nullptr, size_t(bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (place == MAP_FAILED) cannot("map shared memory", errno);
    madvise(place, size_t(bytes), MADV_DONTDUMP);
    return static_cast<char*>(place);
#else
    (void)file, (void)bytes;
    cannot("map shared memory", ENOSYS);
#endif
}

// The arena of a process of this node, which begins with `mark`: mapped, or null where this process may not,
// or that number is another process's here, as in a container of its own.
inline char* map_arena(int64_t process, int file, int64_t bytes, const std::string& mark) {
#if defined(__linux__)
    const std::string place = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(file);
    std::array<char, 64> name{};
    if (readlink(place.c_str(), name.data(), name.size() - 1) < 0 || !std::strstr(name.data(), "memfd:spmdx"))
        return nullptr;
    const int opened = open(place.c_str(), O_RDWR | O_CLOEXEC);
    struct stat found{};
    char* here = nullptr;
    if (opened >= 0 && fstat(opened, &found) == 0 && found.st_size == bytes) {
        try {
            here = map_file(opened, bytes);
        } catch (const std::runtime_error&) {
        }
    }
    if (opened >= 0) close(opened);
    return here && std::memcmp(here, mark.data(), mark.size()) == 0 ? here : nullptr;
#else
    (void)process, (void)file, (void)bytes, (void)mark;
    return nullptr;
#endif
}

// Stretches of one file in memory. All functions are called with the GIL, which is their lock, and run no
// Python.
class Arena {
 public:
    static constexpr int64_t unit = 1 << 16;  // of what is handed out

    explicit Arena(int64_t bytes) : bytes_(bytes / unit * unit) {
#if defined(__linux__)
        rlimit most{};  // who passes it is ended by a signal
        if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur < rlim_t(bytes_))
            cannot("make shared memory", EFBIG);
        owner_ = getpid();
        file_ = memfd_create("spmdx", MFD_CLOEXEC);
        if (file_ < 0) cannot("make shared memory", errno);
        if (ftruncate(file_, bytes_)) {
            const int error = errno;
            close(file_);
            cannot("make shared memory", error);
        }
#endif
        base_ = map_file(file_, bytes_);
        free_[0] = bytes_;
    }

    int file() const { return file_; }
    char* base() const { return base_; }
    int64_t bytes() const { return bytes_; }

    // Memory whose pages are there, or null where there is no room.
    char* take(int64_t bytes) {
        if (!is_mine()) return nullptr;
        bytes = rounded(bytes);
        for (auto it = free_.begin(); it != free_.end(); ++it) {
            const auto [begin, size] = *it;
            if (size < bytes) continue;
            free_.erase(it);
            if (size > bytes) free_[begin + bytes] = size - bytes;
            used_[begin] = bytes;
            if (populate(base_ + begin, bytes)) return base_ + begin;
            give_back(base_ + begin);
            break;
        }
        return nullptr;
    }

    // Its pages go back to the system at once.
    void give_back(char* place) {
        if (!is_mine()) return;
        const auto it = used_.find(place - base_);
        if (it == used_.end()) return;
        auto [begin, size] = *it;
        used_.erase(it);
        drop(begin, size);
        auto next = free_.lower_bound(begin);
        if (next != free_.end() && begin + size == next->first) {
            size += next->second;
            next = free_.erase(next);
        }
        if (next != free_.begin()) {
            const auto before = std::prev(next);
            if (before->first + before->second == begin) {
                before->second += size;
                return;
            }
        }
        free_[begin] = size;
    }

    // A process that is forked would share this memory with its parent, where it must have a copy: it makes
    // one, and the parent waits for it.
    void before_fork() {
#if defined(__linux__)
        copies_ = is_mine() && !used_.empty() && pipe(pipe_) == 0;
#endif
    }
    void after_fork_in_parent() {
#if defined(__linux__)
        if (!copies_) return;
        close(pipe_[1]);
        char nothing;
        while (::read(pipe_[0], &nothing, 1) < 0 && errno == EINTR) {
        }
        close(pipe_[0]);
#endif
    }
    void after_fork_in_child() {
#if defined(__linux__)
        if (!copies_) return;
        for (const auto& [begin, size] : used_) {
            void* const copy =
                mmap(nullptr, size_t(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (copy == MAP_FAILED) _exit(1);
            std::memcpy(copy, base_ + begin, size_t(size));
            if (mremap(copy, size_t(size), size_t(size), MREMAP_MAYMOVE | MREMAP_FIXED, base_ + begin) ==
                MAP_FAILED)
                _exit(1);
        }
        close(pipe_[0]), close(pipe_[1]);
#endif
    }

 private:
    static int64_t rounded(int64_t bytes) { return (bytes + unit - 1) / unit * unit; }
#if defined(__linux__)
    bool is_mine() const { return getpid() == owner_; }
    static bool populate(char* place, int64_t bytes) {
        constexpr int write_pages = 23;  // MADV_POPULATE_WRITE, from Linux 5.14 on
        return !madvise(place, size_t(bytes), write_pages) || errno == EINVAL;
    }
    void drop(int64_t begin, int64_t bytes) const {
        fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin, bytes);
    }
    pid_t owner_ = 0;
    int pipe_[2] = {-1, -1};
    bool copies_ = false;
#else
    bool is_mine() const { return false; }
    static bool populate(char*, int64_t) { return false; }
    void drop(int64_t, int64_t) const {}
#endif
    int64_t bytes_;
    int file_ = -1;
    char* base_ = nullptr;
    std::map<int64_t, int64_t> free_{}, used_{};  // bytes, by where they begin
};

}  // namespace spmdx
