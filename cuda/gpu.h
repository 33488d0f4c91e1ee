// What kernels on a GPU share: loops over elements in steps of the whole grid, sums over a row's threads, and
// accesses of 16 bytes. A row is worked on by the threads of one threadIdx.y: a warp, or a whole block.
#pragma once

#include "scalar.h"

namespace spmdx {
namespace {

#define SPMDX_BY_FOUR _Pragma("unroll 4")
#define SPMDX_ROLLED _Pragma("unroll 1")

constexpr unsigned everyone = 0xFFFFFFFFu;

// The type that values are computed in, and the ways there and back.
template <class T>
struct ComputedIn {
    using Type = T;
};
template <>
struct ComputedIn<Half> {
    using Type = float;
};
template <>
struct ComputedIn<BFloat16> {
    using Type = float;
};
template <class T>
using Computed = typename ComputedIn<T>::Type;

SPMDX_FN float widen(float x) { return x; }
SPMDX_FN double widen(double x) { return x; }
SPMDX_FN float narrow_to(float x, float) { return x; }
SPMDX_FN double narrow_to(double x, double) { return x; }

// Elements that travel together.
template <class T, int count>
struct alignas(sizeof(T) * count) Pack {
    T v[count];
};
template <class T>
constexpr int pack_of = 16 / int(sizeof(T));

template <int count, class T>
SPMDX_FN Pack<T, count> load(const T* from) {
    return *reinterpret_cast<const Pack<T, count>*>(from);
}
template <int count, class T>
SPMDX_FN void store(T* to, const Pack<T, count>& pack) {
    *reinterpret_cast<Pack<T, count>*>(to) = pack;
}
template <int bytes>
SPMDX_FN bool aligned(const void* at) {
    return reinterpret_cast<uint64_t>(at) % bytes == 0;
}

SPMDX_FN uint64_t thread_number() { return uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; }
SPMDX_FN uint64_t thread_count() { return uint64_t(gridDim.x) * blockDim.x; }

template <class T>
struct Add {
    static SPMDX_METHOD T zero() { return T(0); }
    static SPMDX_METHOD T of(T a, T b) { return a + b; }
};
template <class T>
struct Greatest {
    static SPMDX_METHOD T zero() { return T(bit_cast<double>(0xFFF0000000000000ull)); }
    static SPMDX_METHOD T of(T a, T b) { return a != a ? a : (b <= a ? a : b); }  // NaN stays
};

template <class Op, class T>
SPMDX_FN T over_warp(T value) {
    SPMDX_UNROLL for (int step = 16; step; step /= 2) value =
        Op::of(value, __shfl_xor_sync(everyone, value, step));
    return value;
}

// The same value for all threads of a row, in an order that depends on their number alone.
template <class Op, class T>
SPMDX_FN T over_row(T value) {
    value = over_warp<Op>(value);
    if (blockDim.x == 32) return value;
    __shared__ T parts[32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    if (lane == 0) parts[warp] = value;
    __syncthreads();
    value = over_warp<Op>(lane < warps ? parts[lane] : Op::zero());
    __syncthreads();  // before the parts are written again
    return value;
}

// Calls f(first element, register) for the packs of a row of n elements that are this thread's: `held` of
// them, or, for 0, as many as there are.
template <int pack, int held, class F>
SPMDX_FN void over(int64_t n, const F& f) {
    const int64_t step = int64_t(blockDim.x) * pack;
    int64_t i = int64_t(threadIdx.x) * pack;
    if constexpr (held > 0) {
        SPMDX_UNROLL for (int h = 0; h < held; ++h, i += step) if (i < n) f(i, h * pack);
    } else {
        for (; i < n; i += step) f(i, 0);
    }
}

// A row's elements, in registers or (held = 0) read whenever they are asked for.
template <class T, int pack, int held>
struct Row {
    const T* data;
    Computed<T> value[held ? held * pack : pack];
    SPMDX_METHOD void fetch(int64_t i, int at) {
        const Pack<T, pack> some = load<pack>(data + i);
        SPMDX_UNROLL for (int v = 0; v < pack; ++v) value[at + v] = widen(some.v[v]);
    }
    SPMDX_METHOD void begin(const T* from, int64_t n) {
        data = from;
        if constexpr (held > 0) over<pack, held>(n, [&](int64_t i, int at) { fetch(i, at); });
    }
    SPMDX_METHOD void need(int64_t i, int at) {
        if constexpr (held == 0) fetch(i, at);
    }
};

// Calls f(row) for every row of this team.
template <class F>
SPMDX_FN void over_rows(int64_t rows, const F& f) {
    for (int64_t row = int64_t(blockIdx.x) * blockDim.y + threadIdx.y; row < rows;
         row += int64_t(gridDim.x) * blockDim.y)
        f(row);
}

}  // namespace
}  // namespace spmdx
