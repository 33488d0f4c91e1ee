// Kernels of cuda/*.cu on a CPU, thread by thread: what CUDA gives them, for tests of their arithmetic,
// indices and barriers. Threads of a block are fibers; a barrier switches to the next. Nothing here says how
// fast a GPU is.
#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __align__(n) alignas(n)
#define __launch_bounds__(n)

struct Dim3 {
    unsigned x, y, z;
};
static Dim3 gridDim, blockDim, blockIdx, threadIdx;

inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }
inline double __dsqrt_rn(double x) { return __builtin_sqrt(x); }

namespace emulated {

enum Wait { none, warp, block, done };
struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    Wait waits = none;
};
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static size_t running;
static uint64_t exchanged[32][32];  // by warp and lane
alignas(16) static unsigned char memory[1 << 18];
static void (*body)(void**);
static void** arguments;

inline void wait(Wait for_whom) {
    Fiber& me = fibers[running];
    me.waits = for_whom;
    swapcontext(&me.context, &scheduler);
}
inline void start() {
    body(arguments);
    fibers[running].waits = done;
    swapcontext(&fibers[running].context, &scheduler);
}

// Lets go on those of [first, last) that all wait alike. True if some do.
inline bool released(size_t first, size_t last, Wait which) {
    bool any = false;
    for (size_t i = first; i < last; ++i) {
        if (fibers[i].waits == done) continue;
        if (fibers[i].waits != which) return false;
        any = true;
    }
    for (size_t i = first; any && i < last; ++i)
        if (fibers[i].waits == which) fibers[i].waits = none;
    return any;
}

inline bool run_block() {
    const size_t count = size_t(blockDim.x) * blockDim.y;
    while (fibers.size() < count) {
        fibers.emplace_back();
        fibers.back().stack.reset(new char[1 << 16]);
    }
    for (size_t i = 0; i < count; ++i) {
        getcontext(&fibers[i].context);
        fibers[i].context.uc_stack.ss_sp = fibers[i].stack.get();
        fibers[i].context.uc_stack.ss_size = 1 << 16;
        fibers[i].context.uc_link = nullptr;
        makecontext(&fibers[i].context, start, 0);
        fibers[i].waits = none;
    }
    for (;;) {
        bool moved = false, all = true;
        for (size_t i = 0; i < count; ++i) {
            if (fibers[i].waits != none) continue;
            running = i;
            threadIdx = {unsigned(i % blockDim.x), unsigned(i / blockDim.x), 0};
            swapcontext(&scheduler, &fibers[i].context);
            moved = true;
        }
        for (size_t w = 0; w < count; w += 32) moved |= released(w, w + 32 < count ? w + 32 : count, warp);
        moved |= released(0, count, block);
        for (size_t i = 0; i < count; ++i) all = all && fibers[i].waits == done;
        if (all) return true;
        if (!moved) return false;  // some wait at one barrier, the others at another
    }
}

template <class... A, size_t... i>
void call(void (*kernel)(A...), void** given, std::index_sequence<i...>) {
    kernel(*static_cast<std::remove_reference_t<A>*>(given[i])...);
}
template <auto kernel>
struct Of;
template <class... A, void (*kernel)(A...)>
struct Of<kernel> {
    static constexpr size_t arguments = sizeof...(A);
    static void run(void** given) { call(kernel, given, std::index_sequence_for<A...>()); }
};

struct Kernel {
    const char* name;
    void (*run)(void**);
    size_t arguments;
};

}  // namespace emulated

inline void __syncthreads() { emulated::wait(emulated::block); }
inline void __syncwarp() { emulated::wait(emulated::warp); }

template <class T>
T emulated_exchange(T value, unsigned from) {
    const size_t warp = emulated::running / 32, lane = emulated::running % 32;
    std::memcpy(&emulated::exchanged[warp][lane], &value, sizeof(T));
    emulated::wait(emulated::warp);
    T found;
    std::memcpy(&found, &emulated::exchanged[warp][from], sizeof(T));
    emulated::wait(emulated::warp);
    return found;
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int step) {
    return emulated_exchange(value, unsigned(emulated::running % 32) ^ unsigned(step));
}
template <class T>
T __shfl_sync(unsigned, T value, int lane) {
    return emulated_exchange(value, unsigned(lane));
}
