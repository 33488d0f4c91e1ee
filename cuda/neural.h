// Activations and norms of neural networks, each in one pass, with their slopes.
#pragma once

#include "activation.h"
#include "lanes.h"
#include "training.h"

namespace spmdx {

// Elementwise: of x; g times the slope at x; of a gate and x; and what optimizers do.
enum class Activation {
    gelu,
    gelu_back,
    gelu_erf,
    gelu_erf_back,
    silu,
    silu_back,
    swiglu,
    mix,         // x a + y b
    mix_square,  // y**2 b + x a
    adam_step,   // of the means m and v: m / (sqrt(v) / root + eps) * -rate
    adamw_step,  // and less p decay
    passed       // g where x c > a; g b where x c = a; 0 elsewhere
};
struct Numbers {
    double a, b, c, d;
};

// Rows of `n` elements that lie one after another. Null: no scale, no bias.
template <class T>
struct Norm {
    int64_t n;
    T eps;
    bool centered;
    const T *x, *scale, *bias, *g;
    T* out;
};

// Rows of scores of n classes, and what cross-entropy makes of them: of each row the greatest score, and 1
// over the sum of powers. A label that is not of 0 .. n - 1 is elsewhere.
template <class T>
struct Scores {
    int64_t n;
    const T *x, *top, *part, *g;
    const int64_t* labels;
    T even, hit;
    T* out;
};

namespace {

template <class T>
inline void activate_as(Activation which, void* out, const void* const* in, const Numbers& numbers,
                        uint64_t begin, uint64_t end) {
    const T a = T(numbers.a), b = T(numbers.b), c = T(numbers.c), d = T(numbers.d);
    const auto run = [&](auto f) {
        T* const to = static_cast<T*>(out);
        const T *const x = static_cast<const T*>(in[0]), *const y = static_cast<const T*>(in[1]);
        const T* const z = static_cast<const T*>(in[2]);
        SPMDX_FOR (uint64_t i = begin; i < end; ++i) to[i] = f(x[i], y[i], z[i]);
    };
    switch (which) {
        case Activation::gelu: return run([](T x, T, T) { return gelu(x); });
        case Activation::gelu_back: return run([](T g, T x, T) { return g * gelu_slope(x); });
        case Activation::gelu_erf: return run([](T x, T, T) { return gelu_erf(x); });
        case Activation::gelu_erf_back: return run([](T g, T x, T) { return g * gelu_erf_slope(x); });
        case Activation::silu: return run([](T x, T, T) { return silu(x); });
        case Activation::silu_back: return run([](T g, T x, T) { return g * silu_slope(x); });
        case Activation::swiglu: return run([](T gate, T x, T) { return silu(gate) * x; });
        case Activation::mix: return run([=](T x, T y, T) { return mix(x, a, y, b); });
        case Activation::mix_square: return run([=](T x, T y, T) { return mix_square(x, a, y, b); });
        case Activation::adam_step: return run([=](T m, T v, T) { return adam_step(m, v, a, b, c); });
        case Activation::adamw_step:
            return run([=](T m, T v, T p) { return adam_step(m, v, a, b, c) - p * d; });
        case Activation::passed:
            return run([=](T g, T x, T) {
                const T at = x * c, part = b != 0 ? g * b : T(0);  // a form that compilers vectorise
                const T over = at > a ? g : T(0), tied = at == a ? part : T(0);
                return over + tied;
            });
    }
}
inline void activate(Activation which, bool wide, void* out, const void* const* in, const Numbers& numbers,
                     uint64_t begin, uint64_t end) {
    if (wide) return activate_as<double>(which, out, in, numbers, begin, end);
    activate_as<float>(which, out, in, numbers, begin, end);
}

// A sum of `count` terms in an order that does not depend on the instruction set: 16 sums side by side, and
// their sums over stretches of the row in float64.
template <class T, class F>
SPMDX_FN T ordered_sum(int64_t count, const F& term) {
    double total = 0;
    for (int64_t i = 0; i < count;) {
        const int64_t stop = count - i < stretch ? count : i + stretch;
        T sums[side] = {};
        for (; i + side <= stop; i += side)
            SPMDX_FOR (int64_t j = 0; j < side; ++j) sums[j] += term(i + j);
        for (int64_t j = 0; i < stop; ++i, ++j) sums[j] += term(i);
        for (int64_t half = side / 2; half; half /= 2)
            for (int64_t j = 0; j < half; ++j) sums[j] += sums[j + half];
        total += double(sums[0]);
    }
    return T(total);
}

// What a row is shifted and multiplied by so that its mean is 0 (if centered) and its mean square 1.
template <class T>
struct Moments {
    T mean, root;
};
template <class T>
SPMDX_FN Moments<T> moments(const Norm<T>& norm, const T* x) {
    const T n = T(norm.n);
    const T mean = norm.centered ? ordered_sum<T>(norm.n, [&](int64_t i) { return x[i]; }) / n : T(0);
    const T square = ordered_sum<T>(norm.n, [&](int64_t i) { return (x[i] - mean) * (x[i] - mean); }) / n;
    return {mean, 1 / sqrt(square + norm.eps)};
}

template <class T>
inline void norm_rows(const Norm<T>& norm, uint64_t begin, uint64_t end) {
    const int64_t n = norm.n;
    for (uint64_t row = begin; row < end; ++row) {
        const T* const x = norm.x + row * uint64_t(n);
        T* const out = norm.out + row * uint64_t(n);
        const auto [mean, root] = moments(norm, x);
        SPMDX_FOR (int64_t i = 0; i < n; ++i) out[i] = (x[i] - mean) * root;
        if (norm.scale)
            SPMDX_FOR (int64_t i = 0; i < n; ++i) out[i] *= norm.scale[i];
        if (norm.bias)
            SPMDX_FOR (int64_t i = 0; i < n; ++i) out[i] += norm.bias[i];
    }
}

// With respect to x: root (d - y mean(d y) - mean(d)), where d = g scale and y is the row brought to 0 and 1;
// where `out` is null, this is left out. `to_scale` and `to_bias`: null, or where the sums of g y and g go,
// of which this row is the first or to which it is added.
template <class T>
SPMDX_FN void norm_row_back(const Norm<T>& norm, T* to_scale, T* to_bias, uint64_t row, bool first) {
    const int64_t n = norm.n;
    const T *const x = norm.x + row * uint64_t(n), *const g = norm.g + row * uint64_t(n);
    const auto [mean, root] = moments(norm, x);
    if (norm.out) {
        T* const out = norm.out + row * uint64_t(n);
        if (norm.scale)
            SPMDX_FOR (int64_t i = 0; i < n; ++i) out[i] = g[i] * norm.scale[i];
        else
            SPMDX_FOR (int64_t i = 0; i < n; ++i) out[i] = g[i];
        const T along = ordered_sum<T>(n, [&](int64_t i) { return out[i] * (x[i] - mean); }) * root / T(n);
        const T level = norm.centered ? ordered_sum<T>(n, [&](int64_t i) { return out[i]; }) / T(n) : T(0);
        SPMDX_FOR (int64_t i = 0; i < n; ++i) out[i] = (out[i] - (x[i] - mean) * root * along - level) * root;
    }
    if (to_scale && first)
        SPMDX_FOR (int64_t i = 0; i < n; ++i) to_scale[i] = g[i] * ((x[i] - mean) * root);
    else if (to_scale)
        SPMDX_FOR (int64_t i = 0; i < n; ++i) to_scale[i] += g[i] * ((x[i] - mean) * root);
    if (to_bias) add_row(to_bias, g, n, first);
}
template <class T>
inline void norm_rows_back(const Norm<T>& norm, T* to_scale, T* to_bias, uint64_t begin, uint64_t end) {
    for (uint64_t row = begin; row < end; ++row) norm_row_back(norm, to_scale, to_bias, row, row == begin);
}

// The sum of exp(x - top) of each row.
template <class T>
inline void sum_exp_rows(const Scores<T>& scores, uint64_t begin, uint64_t end) {
    for (uint64_t row = begin; row < end; ++row) {
        const T *const x = scores.x + row * uint64_t(scores.n), top = scores.top[row];
        scores.out[row] = ordered_sum<T>(scores.n, [&](int64_t i) { return exp(x[i] - top); });
    }
}

// The sum of x - top of each row.
template <class T>
inline void sum_low_rows(const Scores<T>& scores, uint64_t begin, uint64_t end) {
    for (uint64_t row = begin; row < end; ++row) {
        const T *const x = scores.x + row * uint64_t(scores.n), top = scores.top[row];
        scores.out[row] = ordered_sum<T>(scores.n, [&](int64_t i) { return x[i] - top; });
    }
}

// g (part exp(x - top) - even), and at the row's label g times that less `hit`. (The logarithm of the sum and
// `top` in one number would have the ulp of the scores, and the powers that error.)
template <class T>
inline void scores_back_rows(const Scores<T>& scores, uint64_t begin, uint64_t end) {
    const int64_t n = scores.n;
    for (uint64_t row = begin; row < end; ++row) {
        const T *const x = scores.x + row * uint64_t(n), top = scores.top[row], part = scores.part[row],
                       g = scores.g[row];
        T* const out = scores.out + row * uint64_t(n);
        SPMDX_FOR (int64_t i = 0; i < n; ++i) out[i] = (exp(x[i] - top) * part - scores.even) * g;
        const int64_t label = scores.labels[row];
        if (label >= 0 && label < n) out[label] = (exp(x[label] - top) * part - scores.even - scores.hit) * g;
    }
}

// out[rows[i]] += values[i], one after another, in columns begin .. end of n.
template <class T>
inline void add_rows(T* out, const int64_t* rows, const T* values, int64_t count, int64_t n, uint64_t begin,
                     uint64_t end) {
    for (int64_t i = 0; i < count; ++i) {
        T* const to = out + rows[i] * n;
        const T* const from = values + i * n;
        SPMDX_FOR (uint64_t j = begin; j < end; ++j) to[j] += from[j];
    }
}

}  // namespace
}  // namespace spmdx
