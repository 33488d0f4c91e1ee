// Element by element reduction of several arrays, in their order: ((in[0] op in[1]) op in[2]) ...
#pragma once

#include "portable.h"

namespace spmdx {

enum class Op { sum, prod, min, max };
enum class Number { i32, i64, f32, f64 };

namespace {

// Integers wrap, as NumPy's do: they are added and multiplied unsigned.
template <class T>
struct Unsigned {
    using Type = T;
};
template <>
struct Unsigned<int32_t> {
    using Type = uint32_t;
};
template <>
struct Unsigned<int64_t> {
    using Type = uint64_t;
};

template <Op op, class T>
SPMDX_FN T combine(T a, T b) {
    using U = typename Unsigned<T>::Type;
    if constexpr (op == Op::sum) return T(U(a) + U(b));
    if constexpr (op == Op::prod) return T(U(a) * U(b));
    // A NaN on either side wins, the first one's bits if both are; ties keep the first.
    const T picked = (op == Op::min ? a <= b : a >= b) ? a : b;
    return a != a ? a : picked;
}

// `out` may be any one of the inputs, but must not overlap one otherwise.
template <Op op, class T>
inline void reduce_as(T* out, const T* const* in, int count, uint64_t begin, uint64_t end) {
    constexpr uint64_t tile =
        8192 / sizeof(T);  // stays in the first-level cache while the inputs stream through
    alignas(64) T sum[tile];
    for (uint64_t at = begin; at < end; at += tile) {
        const uint64_t n = end - at < tile ? end - at : tile;
        T* const result = out + at;
        const T *const a = in[0] + at, *const b = (count > 1 ? in[1] : in[0]) + at;
        if (count == 1) {
            SPMDX_FOR (uint64_t i = 0; i < n; ++i) result[i] = a[i];
            continue;
        }
        if (count == 2) {
            SPMDX_FOR (uint64_t i = 0; i < n; ++i) result[i] = combine<op>(a[i], b[i]);
            continue;
        }
        SPMDX_FOR (uint64_t i = 0; i < n; ++i) sum[i] = combine<op>(a[i], b[i]);
        for (int k = 2; k < count - 1; ++k) {
            const T* const next = in[k] + at;
            SPMDX_FOR (uint64_t i = 0; i < n; ++i) sum[i] = combine<op>(sum[i], next[i]);
        }
        const T* const last = in[count - 1] + at;
        SPMDX_FOR (uint64_t i = 0; i < n; ++i) result[i] = combine<op>(sum[i], last[i]);
    }
}

template <class T>
inline void reduce_type(Op op, void* out, const void* const* in, int count, uint64_t begin, uint64_t end) {
    T* const result = static_cast<T*>(out);
    const T* const* const inputs = reinterpret_cast<const T* const*>(in);
    switch (op) {
        case Op::sum: return reduce_as<Op::sum>(result, inputs, count, begin, end);
        case Op::prod: return reduce_as<Op::prod>(result, inputs, count, begin, end);
        case Op::min: return reduce_as<Op::min>(result, inputs, count, begin, end);
        case Op::max: return reduce_as<Op::max>(result, inputs, count, begin, end);
    }
}

inline void reduce(Op op, Number type, void* out, const void* const* in, int count, uint64_t begin,
                   uint64_t end) {
    switch (type) {
        case Number::i32: return reduce_type<int32_t>(op, out, in, count, begin, end);
        case Number::i64: return reduce_type<int64_t>(op, out, in, count, begin, end);
        case Number::f32: return reduce_type<float>(op, out, in, count, begin, end);
        case Number::f64: return reduce_type<double>(op, out, in, count, begin, end);
    }
}

}  // namespace
}  // namespace spmdx
