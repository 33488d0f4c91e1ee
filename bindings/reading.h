// Reading what lies in another process of this node: a long message then takes one copy, made by the system,
// where it takes two through shared memory.
#pragma once

#if defined(__linux__)
#include <sys/uio.h>
#endif

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

namespace spmdx {

struct Stretch {
    uint64_t begin, bytes;
};

// False, with errno, where the system does not let this process read that one, or knows no such thing.
inline bool read_process(int64_t process, const Stretch* from, int64_t count, char* to) {
#if defined(__linux__)
    constexpr int64_t most = 64;  // stretches at once: what the system copies without memory of its own is 8
    for (uint64_t done = 0; count > 0;) {  // bytes of the first stretch
        std::array<iovec, most> there;
        const int64_t n = std::min(count, most);
        uint64_t all = 0;
        for (int64_t i = 0; i < n; ++i) {
            const uint64_t skip = i == 0 ? done : 0;
            there[size_t(i)] = {reinterpret_cast<void*>(from[i].begin + skip), from[i].bytes - skip};
            all += from[i].bytes - skip;
        }
        const iovec here{to, all};
        ssize_t got = process_vm_readv(pid_t(process), &here, 1, there.data(), size_t(n), 0);
        if (got < 0 || (got == 0 && all > 0)) return false;
        to += got;
        for (done += uint64_t(got); count > 0 && done >= from->bytes; ++from, --count) done -= from->bytes;
    }
    return true;
#else
    (void)process, (void)from, (void)to;
    errno = ENOSYS;
    return count <= 0;
#endif
}

inline void must_read(int64_t process, const Stretch* from, int64_t count, char* to) {
    if (!read_process(process, from, count, to))
        throw std::runtime_error("cannot read from process " + std::to_string(process) + ": " +
                                 std::strerror(errno));
}

}  // namespace spmdx
