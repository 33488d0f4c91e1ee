// The one file that knows which compiler reads it: host C++ or CUDA (nvcc, NVRTC). Kernels are written once,
// on top of it.
//
// What equal bits on every processor need: fused multiply-add only where `fma` is written (-ffp-contract=off,
// --fmad=false), no fast-math, no flush-to-zero, and of libm only `fma` and `sqrt`, which IEEE 754 rounds.
#pragma once

#ifdef __CUDACC__
#define SPMDX_FN static __device__ __forceinline__
#define SPMDX_METHOD __device__ __forceinline__
#define SPMDX_FOR for
#define SPMDX_UNROLL _Pragma("unroll")
#define SPMDX_MEMCPY memcpy
#ifdef __CUDACC_RTC__  // NVRTC has no headers
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
#else
#include <cstdint>
#endif
#else
#include <cstdint>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
// Internal linkage: a source is compiled for several instruction sets, which the linker must not merge.
#define SPMDX_FN static inline __attribute__((always_inline))
#define SPMDX_METHOD inline __attribute__((always_inline))
// A loop whose iterations are independent, for the compiler to vectorise.
#define SPMDX_FOR _Pragma("GCC ivdep") for
#define SPMDX_UNROLL _Pragma("GCC unroll 16")
#define SPMDX_MEMCPY __builtin_memcpy
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "64-bit elements are pairs of lanes, the low word first");
#endif

// Products of small matrices in one instruction, for bfloat16 too: from sm_80 on.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define SPMDX_IF_TENSOR_CORES(...) __VA_ARGS__
#else
#define SPMDX_IF_TENSOR_CORES(...)
#endif

// The builds of the kernels that this module holds beside the baseline: CMake says which.
#ifdef SPMDX_HAVE_AVX2
#define SPMDX_IF_AVX2(...) __VA_ARGS__
#else
#define SPMDX_IF_AVX2(...)
#endif
#ifdef SPMDX_HAVE_AVX512
#define SPMDX_IF_AVX512(...) __VA_ARGS__
#else
#define SPMDX_IF_AVX512(...)
#endif
#if defined(__x86_64__)
#define SPMDX_PAUSE() __builtin_ia32_pause()
#else
#define SPMDX_PAUSE() ((void)0)
#endif

namespace spmdx {

// The bits of one type read as another of the same size.
template <class To, class From>
SPMDX_FN To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
    To to;
    SPMDX_MEMCPY(&to, &from, sizeof(to));
    return to;
}

// The whole product of the low half of `a` with `b`.
SPMDX_FN uint64_t multiply_wide(uint64_t a, uint32_t b) { return uint64_t(uint32_t(a)) * b; }

#ifndef __CUDACC__
// 64-bit lanes in one register, and their multiply_wide: compilers do not find that instruction in a loop by
// themselves.
#if defined(__AVX512F__)
typedef uint64_t Lanes __attribute__((vector_size(64)));
SPMDX_FN Lanes multiply_wide(Lanes a, uint32_t b) {
    return (Lanes)_mm512_maskz_mul_epu32(0xFF, (__m512i)a, _mm512_set1_epi64(b));
}
#elif defined(__AVX2__)
typedef uint64_t Lanes __attribute__((vector_size(32)));
SPMDX_FN Lanes multiply_wide(Lanes a, uint32_t b) {
    return (Lanes)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(b));
}
#elif defined(__x86_64__)
typedef uint64_t Lanes __attribute__((vector_size(16)));
SPMDX_FN Lanes multiply_wide(Lanes a, uint32_t b) {
    return (Lanes)_mm_mul_epu32((__m128i)a, _mm_set1_epi64x(b));
}
#else
typedef uint64_t Lanes __attribute__((vector_size(16)));
SPMDX_FN Lanes multiply_wide(Lanes a, uint32_t b) { return (a & 0xFFFFFFFFull) * uint64_t(b); }
#endif
#endif

#ifdef __CUDACC__
SPMDX_FN float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
SPMDX_FN double fma(double a, double b, double c) { return __fma_rn(a, b, c); }
SPMDX_FN float sqrt(float x) { return __fsqrt_rn(x); }
SPMDX_FN double sqrt(double x) { return __dsqrt_rn(x); }
#else
SPMDX_FN float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
SPMDX_FN double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
SPMDX_FN float sqrt(float x) { return __builtin_sqrtf(x); }
SPMDX_FN double sqrt(double x) { return __builtin_sqrt(x); }
#endif

// A 16-bit float is its bits; only conversions know what they mean.
struct Half {
    uint16_t bits;
};
struct BFloat16 {
    uint16_t bits;
};

}  // namespace spmdx
