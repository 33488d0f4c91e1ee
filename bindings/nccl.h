// NCCL as it is found when the program runs: neither its header nor a CUDA toolkit is needed to build. Names
// and numbers are those of NCCL's public interface, 2.18 and newer.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace spmdx::nccl {

using Comm = void*;
using Stream = void*;

struct Id {
    char bytes[128];
};

enum Result : int { success = 0, in_progress = 7 };

// The first fields of ncclConfig_t, which say how long they are: a newer library fills in the rest.
struct Config {
    static constexpr int unset = INT_MIN;
    std::size_t size = sizeof(Config);
    unsigned magic = 0xcafebeef;
    unsigned version = 21800;
    int blocking = 0;
    int cluster = unset, least = unset, most = unset;
    const char* net = nullptr;
    int share = unset;
};

constexpr int oldest = 21800;  // ncclCommSplit, and the fields above

// The functions of an open library.
struct Library {
    int (*ncclGetVersion)(int*);
    int (*ncclGetUniqueId)(Id*);
    const char* (*ncclGetErrorString)(int);
    const char* (*ncclGetLastError)(Comm);
    int (*ncclCommInitRankConfig)(Comm*, int, Id, int, Config*);
    int (*ncclCommSplit)(Comm, int, int, Comm*, Config*);
    int (*ncclCommFinalize)(Comm);
    int (*ncclCommDestroy)(Comm);
    int (*ncclCommAbort)(Comm);
    int (*ncclCommGetAsyncError)(Comm, int*);
    int (*ncclCommCount)(Comm, int*);
    int (*ncclCommUserRank)(Comm, int*);
    int (*ncclAllReduce)(const void*, void*, std::size_t, int, int, Comm, Stream);
    int (*ncclAllGather)(const void*, void*, std::size_t, int, Comm, Stream);
    int (*ncclReduceScatter)(const void*, void*, std::size_t, int, int, Comm, Stream);
    int (*ncclBroadcast)(const void*, void*, std::size_t, int, int, Comm, Stream);
    int (*ncclSend)(const void*, std::size_t, int, int, Comm, Stream);
    int (*ncclRecv)(void*, std::size_t, int, int, Comm, Stream);
    int (*ncclGroupStart)();
    int (*ncclGroupEnd)();

    // Opens it, or says why not.
    explicit Library(const std::string& path);
    int version() const;
};

// What NCCL said, with its number: 0 where it took too long.
struct Error : std::runtime_error {
    Error(int code, const std::string& text) : std::runtime_error(text), code(code) {}
    int code;
};

}  // namespace spmdx::nccl
