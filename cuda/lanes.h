// Registers of several numbers, for the loops that compilers do not find good ones for: products of matrices.
// CPU only. Unlike elsewhere the baseline's results may differ in their last bits from those of instruction
// sets that multiply and add at once, which are the same.
#pragma once

#include "scalar.h"

namespace spmdx {
namespace {

#if defined(__AVX512F__)
constexpr int register_bytes = 64;
#elif defined(__AVX2__)
constexpr int register_bytes = 32;
#else
constexpr int register_bytes = 16;
#endif

template <class T>
struct Wide;
template <>
struct Wide<float> {
    typedef float Type __attribute__((vector_size(register_bytes)));
    typedef uint32_t Bits __attribute__((vector_size(register_bytes)));
};
template <>
struct Wide<double> {
    typedef double Type __attribute__((vector_size(register_bytes)));
    typedef uint64_t Bits __attribute__((vector_size(register_bytes)));
};
template <class T>
using Vector = typename Wide<T>::Type;
template <class T>
constexpr int lanes_of = register_bytes / int(sizeof(T));

template <class T>
SPMDX_FN Vector<T> load(const T* from) {
    Vector<T> v;
    SPMDX_MEMCPY(&v, from, sizeof(v));
    return v;
}
template <class T>
SPMDX_FN void store(T* to, Vector<T> v) {
    SPMDX_MEMCPY(to, &v, sizeof(v));
}
template <class T>
SPMDX_FN Vector<T> spread(T x) {
    return x - Vector<T>{};
}

#if defined(__AVX512F__)
SPMDX_FN Vector<float> multiply_add(Vector<float> a, Vector<float> b, Vector<float> c) {
    return (Vector<float>)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
SPMDX_FN Vector<double> multiply_add(Vector<double> a, Vector<double> b, Vector<double> c) {
    return (Vector<double>)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
}
#elif defined(__AVX2__)
SPMDX_FN Vector<float> multiply_add(Vector<float> a, Vector<float> b, Vector<float> c) {
    return (Vector<float>)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
SPMDX_FN Vector<double> multiply_add(Vector<double> a, Vector<double> b, Vector<double> c) {
    return (Vector<double>)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
}
#else
template <class V>
SPMDX_FN V multiply_add(V a, V b, V c) {
    return a * b + c;
}
#endif

}  // namespace

// What scalar.h asks for, of registers: a product and a sum are rounded once on every processor.
template <class V, class T>
struct Registers {
    using Item = T;
    using Bits = typename Wide<T>::Bits;
    static SPMDX_METHOD V all(T x) { return x - V{}; }
    static SPMDX_METHOD V fused(V a, V b, V c) {
#if defined(__AVX2__)
        return multiply_add(a, b, c);
#else
        for (int j = 0; j < lanes_of<T>; ++j) c[j] = fma(a[j], b[j], c[j]);
        return c;
#endif
    }
};
template <>
struct Arithmetic<Vector<float>> : Registers<Vector<float>, float> {};
template <>
struct Arithmetic<Vector<double>> : Registers<Vector<double>, double> {};

namespace {

// A number of elements as a whole number of registers.
template <class T>
SPMDX_FN int64_t padded(int64_t n) {
    constexpr int64_t w = lanes_of<T>;
    return (n + w - 1) / w * w;
}

SPMDX_FN int64_t rounded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

constexpr int64_t side = 16;  // sums and extremes of a row are taken by so many lanes, on every processor

// A sum in float32 loses digits as it grows: so many terms are added, a `side`th of them in each lane, and
// the sums of these in float64. Of positive terms a sum is then off by less than 70 half ulps, however long.
constexpr int64_t stretch = 1024;

template <class T>
constexpr T lane_numbers[side] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// A row's lanes: `side` of them, whatever the registers.
template <class T>
struct Sides {
    static constexpr int w = lanes_of<T>, count = int(side) / w;
    Vector<T> each[count];
};

// f of lanes j and j + n / 2, then of what that gives the same, down to one number.
template <int n, class T, class F>
SPMDX_FN T folded(const T* lanes, const F& f) {
    if constexpr (n == 1) {
        return lanes[0];
    } else {
        constexpr int half = n / 2;
        T found[half];
        if constexpr (half * sizeof(T) >= 16) {
            typedef T Part __attribute__((vector_size(half * sizeof(T))));
            Part a, b;
            SPMDX_MEMCPY(&a, lanes, sizeof(a)), SPMDX_MEMCPY(&b, lanes + half, sizeof(b));
            a = f(a, b);
            SPMDX_MEMCPY(found, &a, sizeof(a));
        } else {
            SPMDX_UNROLL for (int j = 0; j < half; ++j) found[j] = f(lanes[j], lanes[j + half]);
        }
        return folded<half>(found, f);
    }
}
template <class T, class F>
SPMDX_FN T fold(Sides<T> sides, const F& f) {
    SPMDX_UNROLL for (int n = sides.count / 2; n; n /= 2) SPMDX_UNROLL for (int c = 0; c < n; ++c)
        sides.each[c] = f(sides.each[c], sides.each[c + n]);
    T lanes[sides.w];
    SPMDX_MEMCPY(lanes, sides.each, sizeof(lanes));
    return folded<sides.w>(lanes, f);
}

// exp(x) for x <= 0 within 2 ulp; 0 where that is not a normal number, so that products do not slow down.
// NaN stays.
SPMDX_FN Vector<float> power(Vector<float> x) {
    typedef Wide<float>::Bits Bits;
    const Vector<float> least = spread(-86.6f), y = x < least ? least : x, magic = spread(0x1.8p23f);
    const Vector<float> shifted = multiply_add(y, spread(0x1.715476p+0f), magic), k = shifted - magic;
    const Vector<float> r =
        multiply_add(k, spread(-0x1.0bfbe8p-15f), multiply_add(k, spread(-0x1.62ep-1f), y));
    Vector<float> p = spread(0x1.a124f2p-13f);
    p = multiply_add(p, r, spread(0x1.6d4324p-10f));
    p = multiply_add(p, r, spread(0x1.1110ep-7f));
    p = multiply_add(p, r, spread(0x1.5554eap-5f));
    p = multiply_add(p, r, spread(0x1.555556p-3f));
    p = multiply_add(p, r, spread(0.5f));
    p = multiply_add(p, r, spread(1.0f));
    p = multiply_add(p, r, spread(1.0f));
    const Vector<float> value = p * (Vector<float>)(((Bits)shifted << 23) + 0x3F800000u);
    return x < least ? Vector<float>{} : value;
}
SPMDX_FN Vector<double> power(Vector<double> x) {
    typedef Wide<double>::Bits Bits;
    const Vector<double> least = spread(-707.0), y = x < least ? least : x, magic = spread(0x1.8p52);
    const Vector<double> shifted = multiply_add(y, spread(0x1.71547652b82fep+0), magic), k = shifted - magic;
    const Vector<double> r =
        multiply_add(k, spread(-0x1.9ef35793c7673p-41), multiply_add(k, spread(-0x1.62e42fefa2p-1), y));
    Vector<double> p = spread(0x1.1f730349868cep-29);
    p = multiply_add(p, r, spread(0x1.af4de97ca4194p-26));
    p = multiply_add(p, r, spread(0x1.27e4db646b17ep-22));
    p = multiply_add(p, r, spread(0x1.71de0231960ebp-19));
    p = multiply_add(p, r, spread(0x1.a01a01a6d889cp-16));
    p = multiply_add(p, r, spread(0x1.a01a01abe7fe1p-13));
    p = multiply_add(p, r, spread(0x1.6c16c16c162d4p-10));
    p = multiply_add(p, r, spread(0x1.11111111100dcp-7));
    p = multiply_add(p, r, spread(0x1.5555555555556p-5));
    p = multiply_add(p, r, spread(0x1.5555555555557p-3));
    p = multiply_add(p, r, spread(0.5));
    p = multiply_add(p, r, spread(1.0));
    p = multiply_add(p, r, spread(1.0));
    const Vector<double> value = p * (Vector<double>)(((Bits)shifted << 52) + 0x3FF0000000000000ull);
    return x < least ? Vector<double>{} : value;
}

}  // namespace
}  // namespace spmdx
