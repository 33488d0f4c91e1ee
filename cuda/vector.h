// Products of a matrix and a vector: what broadcasts among the operands of a product come down to. CPU only.
//
// The matrix is read once, as it lies, and each element of the result is added up in an order of its own,
// whichever others are asked for.
#pragma once

#include "product.h"

namespace spmdx {

// out (rows) = a v, each sum of `depth` products; elements of `v` lie side by side.
template <class T>
struct Applied {
    Strided<const T> a;
    const T* v;
    T* out;
    int64_t depth;
};

namespace {

// As many columns as `count` registers hold, of rows that lie one after another along k: sums in its order.
template <int count, class T>
inline void apply_along(const T* a, int64_t step, const T* v, int64_t depth, T* out) {
    constexpr int w = lanes_of<T>;
    Vector<T> sum[count] = {};
    for (int64_t k = 0; k < depth; ++k, a += step) {
        const Vector<T> x = spread(v[k]);
        SPMDX_UNROLL for (int c = 0; c < count; ++c) sum[c] = multiply_add(x, load(a + c * w), sum[c]);
    }
    SPMDX_UNROLL for (int c = 0; c < count; ++c) store(out + c * w, sum[c]);
}

// One row: a sum for each of 64 lanes, and these in pairs.
template <class T>
inline T apply_row(const T* a, const T* v, int64_t depth) {
    constexpr int w = lanes_of<T>, lanes = 64, count = lanes / w;
    Vector<T> sum[count] = {};
    const auto add = [&](const T* x, const T* y) {
        SPMDX_UNROLL for (int c = 0; c < count; ++c) sum[c] =
            multiply_add(load(x + c * w), load(y + c * w), sum[c]);
    };
    int64_t k = 0;
    for (; k + lanes <= depth; k += lanes) add(a + k, v + k);
    if (k < depth) {
        T x[lanes] = {}, y[lanes] = {};
        const size_t left = size_t(depth - k) * sizeof(T);
        SPMDX_MEMCPY(x, a + k, left), SPMDX_MEMCPY(y, v + k, left);
        add(x, y);
    }
    const auto plus = [](auto x, auto y) { return x + y; };
    SPMDX_UNROLL for (int n = count / 2; n; n /= 2) SPMDX_UNROLL for (int c = 0; c < n; ++c) sum[c] =
        plus(sum[c], sum[c + n]);
    T last[w];
    SPMDX_MEMCPY(last, sum, sizeof(last));
    return folded<w>(last, plus);
}

// Elements begin to end of the result.
template <class T>
inline void apply(const Applied<T>& given, int64_t begin, int64_t end) {
    constexpr int w = lanes_of<T>, most = 8;
    if (given.a.column == 1) {
        for (int64_t i = begin; i < end; ++i)
            given.out[i] = apply_row(given.a.data + i * given.a.row, given.v, given.depth);
        return;
    }
    int64_t i = begin;
    const auto run = [&](auto along, int n) {
        for (; i + n * w <= end; i += n * w)
            along(given.a.data + i, given.a.column, given.v, given.depth, given.out + i);
    };
    run(apply_along<most, T>, most);
    run(apply_along<1, T>, 1);
    if (i == end) return;
    // What is left, by way of memory that has room for a register.
    Vector<T> sum{};
    for (int64_t k = 0; k < given.depth; ++k) {
        T some[w] = {};
        SPMDX_MEMCPY(some, given.a.data + i + k * given.a.column, size_t(end - i) * sizeof(T));
        sum = multiply_add(spread(given.v[k]), load(some), sum);
    }
    SPMDX_MEMCPY(given.out + i, &sum, size_t(end - i) * sizeof(T));
}

}  // namespace
}  // namespace spmdx
