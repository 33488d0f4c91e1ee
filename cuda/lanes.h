// Registers of several numbers, for the loops that compilers do not find good ones for: products of matrices.
// CPU only. Unlike elsewhere results may differ between instruction sets in their last bits.
#pragma once

#include "portable.h"

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
};
template <>
struct Wide<double> {
    typedef double Type __attribute__((vector_size(register_bytes)));
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

// out (rows x width) = or += a b. Element (i, k) of `a` is a[i row + k step]; b and out are row-major, `wide`
// and `out_wide` apart, and `width` is a whole number of registers, for which both have room.
template <class T>
struct Product {
    const T* a;
    int64_t row, step;
    const T* b;
    int64_t wide;
    T* out;
    int64_t out_wide;
    int64_t depth;

    template <int Rows, int Count, bool Add>
    SPMDX_METHOD void tile(int64_t i, int64_t j) const {
        constexpr int w = lanes_of<T>;
        Vector<T> sum[Rows][Count];
        SPMDX_UNROLL for (int r = 0; r < Rows; ++r) SPMDX_UNROLL for (int c = 0; c < Count; ++c) sum[r][c] =
            Add ? load(out + (i + r) * out_wide + j + c * w) : Vector<T>{};
        const T *left = a + i * row, *right = b + j;
        for (int64_t k = 0; k < depth; ++k, left += step, right += wide) {
            Vector<T> some[Count];
            SPMDX_UNROLL for (int c = 0; c < Count; ++c) some[c] = load(right + c * w);
            SPMDX_UNROLL for (int r = 0; r < Rows; ++r) {
                const Vector<T> x = spread(left[r * row]);
                SPMDX_UNROLL for (int c = 0; c < Count; ++c) sum[r][c] = multiply_add(x, some[c], sum[r][c]);
            }
        }
        SPMDX_UNROLL for (int r = 0; r < Rows; ++r) SPMDX_UNROLL for (int c = 0; c < Count; ++c)
            store(out + (i + r) * out_wide + j + c * w, sum[r][c]);
    }

    template <int Rows, bool Add>
    void strip(int64_t i, int64_t width) const {
        constexpr int w = lanes_of<T>;
        int64_t j = 0;
        for (; j + 2 * w <= width; j += 2 * w) tile<Rows, 2, Add>(i, j);
        if (j < width) tile<Rows, 1, Add>(i, j);
    }

    template <bool Add>
    void run(int64_t rows, int64_t width) const {
        int64_t i = 0;
        for (; i + 6 <= rows; i += 6) strip<6, Add>(i, width);
        switch (rows - i) {
            case 1: return strip<1, Add>(i, width);
            case 2: return strip<2, Add>(i, width);
            case 3: return strip<3, Add>(i, width);
            case 4: return strip<4, Add>(i, width);
            case 5: return strip<5, Add>(i, width);
        }
    }
};

// A number of elements as a whole number of registers.
template <class T>
SPMDX_FN int64_t padded(int64_t n) {
    constexpr int64_t w = lanes_of<T>;
    return (n + w - 1) / w * w;
}

}  // namespace
}  // namespace spmdx
