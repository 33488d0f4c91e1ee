// Reading what lies in another process of this node: a long message then takes one copy, made by the system,
// where it takes two through shared memory.
#pragma once

#if defined(__linux__)
#include <sys/uio.h>
#endif

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

namespace spmdx {

// False, with errno, where the system does not let this process read that one, or knows no such thing.
inline bool read_process(int64_t process, uint64_t from, char* to, int64_t bytes) {
#if defined(__linux__)
    while (bytes > 0) {
        const iovec here{to, size_t(bytes)}, there{reinterpret_cast<void*>(from), size_t(bytes)};
        const ssize_t done = process_vm_readv(pid_t(process), &here, 1, &there, 1, 0);
        if (done <= 0) return false;
        to += done, from += uint64_t(done), bytes -= done;
    }
    return true;
#else
    (void)process, (void)from, (void)to;
    errno = ENOSYS;
    return bytes <= 0;
#endif
}

inline void must_read(int64_t process, uint64_t from, char* to, int64_t bytes) {
    if (!read_process(process, from, to, bytes))
        throw std::runtime_error("cannot read from process " + std::to_string(process) + ": " +
                                 std::strerror(errno));
}

}  // namespace spmdx
