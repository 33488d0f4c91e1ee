// Memory for long blocks, which is used again: new pages cost as much as the numbers that go into them.
// Between ranks of one node it can be mapped by the others: what a rank has computed is then read from where
// it lies, and results are written to where they go, by plain loads and stores.
#pragma once

#if defined(__linux__)
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

#include <algorithm>
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

constexpr int64_t large_page = 1 << 21;  // bytes, where a processor and a system have such

#if defined(__linux__)
template <class Resource>  // an enumeration, or a number
bool is_bounded(Resource what) {
    rlimit most{};
    return getrlimit(what, &most) == 0 && most.rlim_cur != RLIM_INFINITY;
}
#endif

// Address space to the end of the process: a file's, or without one this process's own. Pages that nobody has
// written to take no memory. It begins where a large page does, so that all mappings of a file can have them.
inline char* map_pages(int file, int64_t bytes) {
#if defined(__linux__)
    // Where that is bounded address space is not to be had for nothing.
    if (is_bounded(RLIMIT_AS) || (file < 0 && is_bounded(RLIMIT_DATA))) cannot("reserve memory", ENOMEM);
    const int kind = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    void* const room = mmap(nullptr, size_t(bytes + large_page), PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) cannot("reserve memory", errno);
    char *const begin = static_cast<char*>(room), *const end = begin + bytes + large_page;
    char* const aligned =
        begin + (large_page - int64_t(reinterpret_cast<uintptr_t>(room) % large_page)) % large_page;
    void* const place =
        mmap(aligned, size_t(bytes), PROT_READ | PROT_WRITE, kind | MAP_NORESERVE | MAP_FIXED, file, 0);
    if (place == MAP_FAILED) {
        const int error = errno;
        munmap(room, size_t(bytes + large_page));
        cannot("reserve memory", error);
    }
    if (aligned > begin) munmap(begin, size_t(aligned - begin));
    if (end > aligned + bytes) munmap(aligned + bytes, size_t(end - aligned - bytes));
    madvise(place, size_t(bytes), MADV_DONTDUMP);  // a core file would count all of its pages
    madvise(place, size_t(bytes), MADV_HUGEPAGE);
    return static_cast<char*>(place);
#else
    (void)file, (void)bytes;
    cannot("reserve memory", ENOSYS);
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
            here = map_pages(opened, bytes);
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

// All functions are called with the GIL, which is their lock, and run no Python.
class Arena {
 public:
    static constexpr int64_t unit = 1 << 16;  // of what is handed out
    static constexpr int64_t rest = 1 << 29;  // bytes that nobody uses and the system does not have, at most

    // Memory of this process's own, or that others can map. Of that an eighth may be at rest: new pages may
    // cost more than what a message brings.
    Arena(int64_t bytes, bool shared) : bytes_(bytes / unit * unit) {
#if defined(__linux__)
        owner_ = getpid();
        if (shared) {
            rlimit most{};  // who passes it is ended by a signal
            if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur < rlim_t(bytes_))
                cannot("make shared memory", EFBIG);
            file_ = memfd_create("spmdx", MFD_CLOEXEC);
            if (file_ < 0) cannot("make shared memory", errno);
            if (ftruncate(file_, bytes_)) {
                const int error = errno;
                close(file_);
                cannot("make shared memory", error);
            }
            rest_ = std::max(rest, bytes_ / 8);
        }
        try {
            base_ = map_pages(file_, bytes_);
        } catch (const std::runtime_error&) {
            if (file_ >= 0) close(file_);
            throw;
        }
#else
        (void)shared;
        base_ = map_pages(file_, bytes_);
#endif
        cold_[0] = bytes_;
    }

    int file() const { return file_; }
    char* base() const { return base_; }
    int64_t bytes() const { return bytes_; }

    // Memory, or null where there is no room. Of shared memory the pages are there.
    char* take(int64_t bytes) {
        if (!is_mine() || bytes > bytes_) return nullptr;
        bytes = (std::max<int64_t>(bytes, 1) + unit - 1) / unit * unit;
        auto found = warm_.end();
        for (auto it = warm_.begin(); it != warm_.end(); ++it)
            if (it->second >= bytes && (found == warm_.end() || it->second < found->second)) found = it;
        if (found != warm_.end()) {
            at_rest_ -= bytes;
            return use(warm_, found, bytes);
        }
        if (char* const place = take_cold(bytes)) return place;
        cool(0);
        return take_cold(bytes);
    }

    void give_back(char* place) {
        const auto it = used_.find(place - base_);
        if (!is_mine() || it == used_.end()) return;
        const auto [begin, size] = *it;
        used_.erase(it);
        join(warm_, begin, size);
        at_rest_ += size;
        if (at_rest_ > rest_) cool(rest_);
    }

    // A process that is forked would share this memory with its parent, where it must have a copy: it makes
    // one, and the parent waits for it.
    void before_fork() {
#if defined(__linux__)
        copies_ = is_mine() && !used_.empty();
        if (copies_ && pipe2(pipe_, O_CLOEXEC)) pipe_[0] = pipe_[1] = -1;
#endif
    }
    void after_fork_in_parent() {
#if defined(__linux__)
        if (!copies_ || pipe_[0] < 0) return;
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
        if (pipe_[0] < 0) end_child("too many open files");  // the parent does not wait
        for (const auto& [begin, size] : used_) {
            void* const copy =
                mmap(nullptr, size_t(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (copy == MAP_FAILED) end_child("no memory");
            std::memcpy(copy, base_ + begin, size_t(size));
            if (mremap(copy, size_t(size), size_t(size), MREMAP_MAYMOVE | MREMAP_FIXED, base_ + begin) ==
                MAP_FAILED)
                end_child("no memory");
        }
        close(pipe_[0]), close(pipe_[1]);
#endif
    }

 private:
    using Extents = std::map<int64_t, int64_t>;  // bytes, by where they begin

    char* use(Extents& from, Extents::iterator it, int64_t bytes) {
        const auto [begin, size] = *it;
        from.erase(it);
        if (size > bytes) from[begin + bytes] = size - bytes;
        used_[begin] = bytes;
        return base_ + begin;
    }
    char* take_cold(int64_t bytes) {
        for (auto it = cold_.begin(); it != cold_.end(); ++it) {
            if (it->second < bytes) continue;
            const int64_t begin = it->first, whole = std::min(it->second, up(bytes));
            char* const place = use(cold_, it, whole);
            if (!populate(place, whole)) {
                used_.erase(begin);
                drop(begin, whole);
                break;
            }
            if (whole > bytes) {  // the rest of the last large page
                used_[begin] = bytes;
                join(warm_, begin + bytes, whole - bytes);
                at_rest_ += whole - bytes;
            }
            return place;
        }
        return nullptr;
    }
    // What lies side by side becomes one.
    static void join(Extents& extents, int64_t begin, int64_t size) {
        auto next = extents.lower_bound(begin);
        if (next != extents.end() && begin + size == next->first) {
            size += next->second;
            next = extents.erase(next);
        }
        if (next != extents.begin()) {
            const auto before = std::prev(next);
            if (before->first + before->second == begin) {
                before->second += size;
                return;
            }
        }
        extents[begin] = size;
    }
    static int64_t up(int64_t bytes) { return (bytes + large_page - 1) / large_page * large_page; }
    static int64_t down(int64_t bytes) { return bytes / large_page * large_page; }
    // Give large pages back to the system until so many bytes are at rest: the highest first, for the lowest
    // are used first.
    void cool(int64_t rest) {
        for (auto it = warm_.end(); at_rest_ > rest && it != warm_.begin();) {
            it = std::prev(it);
            const auto [begin, size] = *it;
            const int64_t end = begin + size, last = end == bytes_ ? end : down(end);
            const int64_t first = std::max(up(begin), down(last - (at_rest_ - rest)));
            if (first >= last) continue;
            if (last < end) warm_[last] = end - last;
            if (begin < first)
                it->second = first - begin;
            else
                it = warm_.erase(it);
            at_rest_ -= last - first;
            drop(first, last - first);
        }
    }
    // The advice is for shared memory too: libraries that keep pages for a network card listen to it.
    void drop(int64_t begin, int64_t bytes) {
#if defined(__linux__)
        madvise(base_ + begin, size_t(bytes), MADV_DONTNEED);
        if (file_ >= 0) (void)!fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin, bytes);
#endif
        join(cold_, begin, bytes);
    }
#if defined(__linux__)
    // A forked process has a copy of its parent's own memory, but what is shared is not its own.
    bool is_mine() const { return file_ < 0 || getpid() == owner_; }
    // Pages for shared memory, which begin where a large one does. A system that makes no large ones for
    // shared memory by itself makes them when asked, from a small page in each, in a third of the time.
    bool populate(char* place, int64_t bytes) {
        constexpr int write_pages = 23, collapse = 25;  // from Linux 5.14 and 6.1 on; as in their madvise(2)
        const auto write = [](char* from, int64_t n) {
            return !madvise(from, size_t(n), write_pages) || errno == EINVAL;
        };
        if (file_ < 0) return true;
        if (large_ && bytes >= large_page) {
            for (int64_t at = 0; at < down(bytes); at += large_page)
                if (!write(place + at, 1)) return false;
            if (madvise(place, size_t(down(bytes)), collapse)) large_ = errno == EAGAIN || errno == EBUSY;
        }
        return write(place, bytes);
    }
    // A forked process that would write to its parent's memory.
    [[noreturn]] static void end_child(const char* why) {
        const std::string text =
            std::string("spmdx: a forked process cannot have a copy of its parent's arrays: ") + why +
            "; SPMDX_ARENA=0 does without\n";
        (void)!::write(2, text.data(), text.size());
        _exit(1);
    }
    pid_t owner_ = 0;
    int pipe_[2] = {-1, -1};
    bool copies_ = false, large_ = true;  // whether a fork makes copies, and the system large pages
#else
    static bool is_mine() { return true; }
    static bool populate(char*, int64_t) { return true; }
#endif
    int64_t bytes_, rest_ = rest, at_rest_ = 0;
    int file_ = -1;
    char* base_ = nullptr;
    Extents cold_{}, warm_{}, used_{};  // without pages; with pages and at rest; handed out
};

}  // namespace spmdx
