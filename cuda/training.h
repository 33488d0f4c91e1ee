// What a step of training does to large arrays in one pass: a bias with its activation, sums over rows, Adam.
#pragma once

#include "activation.h"
#include "portable.h"

namespace spmdx {

// Sums over rows are made of chunks of so many, each added up from its first row on, and these from the first
// on: the same bits for any number of threads.
constexpr uint64_t chunk_rows = 64;

// Rows of n elements, each with the same vector added. With g, the gradient with respect to these sums.
template <class T>
struct Biased {
    int64_t n;
    const T *x, *bias, *g;
    T* out;
};

// Rows of `heads` for each of several positions, whose pairs of elements (the two halves, or neighbours) are
// turned by the angles of the position: of `angles` rows of them, over and over.
template <class T>
struct Rotation {
    int64_t heads, half, angles;
    bool neighbours;
    const T *x, *cos, *sin;
    T* out;
};

// One parameter: its gradient, the running means, itself (null: it does not decay); and what they become.
template <class T>
struct Adam {
    const T *g, *m, *v, *p;
    T *mean, *square, *step;
};
struct AdamNumbers {
    double kept, added, kept_square, added_square, rate, root, eps, decay;
};

namespace {

// Elements in chunks of four lines of the cache: run(first, last). Each asks for what it will stream through
// soon, where there is as much to compute as to read: a processor by itself asks too late, and GELU's
// gradient took half as long again.
template <class T, class I, class Run>
SPMDX_FN void in_chunks(I first, I last, const Run& run) {
    constexpr I chunk = 256 / sizeof(T);
    for (; first < last; first += chunk) run(first, last - first < chunk ? last : first + chunk);
}
SPMDX_FN void lines_after(const void* at) {
    const char* const ahead = static_cast<const char*>(at) + 2048;
    SPMDX_UNROLL for (int i = 0; i < 4; ++i) __builtin_prefetch(ahead + 64 * i);
}
template <class... T>
SPMDX_FN void soon(const T*... at) {
    (lines_after(at), ...);
}

template <class T>
SPMDX_FN void add_row(T* sum, const T* row, int64_t n, bool first) {
    if (first)
        SPMDX_FOR (int64_t i = 0; i < n; ++i) sum[i] = row[i];
    else
        SPMDX_FOR (int64_t i = 0; i < n; ++i) sum[i] += row[i];
}

template <class T>
inline void sum_rows(T* sum, const T* x, int64_t n, uint64_t begin, uint64_t end) {
    for (uint64_t row = begin; row < end; ++row) add_row(sum, x + row * uint64_t(n), n, row == begin);
}

template <class T>
inline void bias_gelu_rows(const Biased<T>& rows, uint64_t begin, uint64_t end) {
    const int64_t n = rows.n;
    const T* const bias = rows.bias;
    for (uint64_t row = begin; row < end; ++row) {
        const T* const x = rows.x + row * uint64_t(n);
        T* const out = rows.out + row * uint64_t(n);
        in_chunks<T>(int64_t(0), n, [&](int64_t first, int64_t last) {
            soon(x + first, out + first);
            SPMDX_FOR (int64_t i = first; i < last; ++i) out[i] = gelu(x[i] + bias[i]);
        });
    }
}
// `sum`: null, or where the sum of these rows goes.
template <class T>
inline void bias_gelu_rows_back(const Biased<T>& rows, T* sum, uint64_t begin, uint64_t end) {
    const int64_t n = rows.n;
    const T* const bias = rows.bias;
    for (uint64_t row = begin; row < end; ++row) {
        const T *const x = rows.x + row * uint64_t(n), *const g = rows.g + row * uint64_t(n);
        T* const out = rows.out + row * uint64_t(n);
        in_chunks<T>(int64_t(0), n, [&](int64_t first, int64_t last) {
            soon(x + first, g + first, out + first);
            SPMDX_FOR (int64_t i = first; i < last; ++i) out[i] = g[i] * gelu_slope(x[i] + bias[i]);
        });
        if (sum) add_row(sum, out, n, row == begin);
    }
}

template <class T>
inline void rotate_rows(const Rotation<T>& by, uint64_t begin, uint64_t end) {
    const int64_t half = by.half;
    for (uint64_t row = begin; row < end; ++row) {
        const int64_t angle = int64_t(row) / by.heads % by.angles;
        const T *const c = by.cos + angle * half, *const s = by.sin + angle * half;
        const T* const x = by.x + row * uint64_t(2 * half);
        T* const out = by.out + row * uint64_t(2 * half);
        if (by.neighbours)
            SPMDX_FOR (int64_t i = 0; i < half; ++i) {
                const T a = x[2 * i], b = x[2 * i + 1];
                out[2 * i] = a * c[i] - b * s[i];
                out[2 * i + 1] = b * c[i] + a * s[i];
            }
        else
            SPMDX_FOR (int64_t i = 0; i < half; ++i) {
                const T a = x[i], b = x[half + i];
                out[i] = a * c[i] - b * s[i];
                out[half + i] = b * c[i] + a * s[i];
            }
    }
}

template <class T>
inline void add_to_rows(T* out, const T* x, const T* bias, int64_t n, uint64_t begin, uint64_t end) {
    for (uint64_t row = begin; row < end; ++row)
        SPMDX_FOR (int64_t i = 0; i < n; ++i)
            out[row * uint64_t(n) + uint64_t(i)] = x[row * uint64_t(n) + uint64_t(i)] + bias[i];
}

// The steps of Activation::mix, mix_square and adamw_step, one after another.
template <class T>
inline void adam(const Adam<T>& of, const AdamNumbers& numbers, uint64_t begin, uint64_t end) {
    const T kept = T(numbers.kept), added = T(numbers.added), kept_square = T(numbers.kept_square),
            added_square = T(numbers.added_square), rate = T(numbers.rate), root = T(numbers.root),
            eps = T(numbers.eps), decay = T(numbers.decay);
    const T *const g = of.g, *const before = of.m, *const square_before = of.v, *const p = of.p;
    T *const mean = of.mean, *const square = of.square, *const step = of.step;
    const auto run = [&](auto decayed) {
        in_chunks<T>(begin, end, [&](uint64_t first, uint64_t last) {
            soon(g + first, before + first, square_before + first, mean + first, square + first,
                 step + first);
            if (p) soon(p + first);
            SPMDX_FOR (uint64_t i = first; i < last; ++i) {
                const T m = mix(before[i], kept, g[i], added);
                const T v = mix_square(square_before[i], kept_square, g[i], added_square);
                mean[i] = m, square[i] = v;
                step[i] = decayed(adam_step(m, v, rate, root, eps), i);
            }
        });
    };
    if (p)
        run([=](T taken, uint64_t i) { return taken - p[i] * decay; });
    else
        run([](T taken, uint64_t) { return taken; });
}

}  // namespace
}  // namespace spmdx
