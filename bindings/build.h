// One build of the kernels: the same source, compiled for one instruction set. All builds give the same bits.
#pragma once

#include "cuda/map.h"
#include "cuda/reduce.h"

namespace spmdx {

struct Build {
    const char* name;
    bool (*fill)(const Draw&, const Layout&, uint64_t begin, uint64_t end, void* out);
    void (*reduce)(Op, Number, void* out, const void* const* in, int count, uint64_t begin, uint64_t end);
    void (*map)(Function, void* out, const Operand* in, uint64_t begin, uint64_t end);
    void (*streams)(Stream, Key, const Layout&, const Operand* in, uint64_t begin, uint64_t end, double* out);
    // For tests of cuda/scalar.h, over `count` values each; sin comes first, then cos.
    void (*log32)(const float* in, float* out, uint64_t count);
    void (*log64)(const double* in, double* out, uint64_t count);
    void (*sincos32)(const uint32_t* angle, float* out, uint64_t count);
    void (*sincos64)(const uint64_t* angle, double* out, uint64_t count);
};

extern const Build baseline_build;
SPMDX_IF_AVX2(extern const Build avx2_build;)
SPMDX_IF_AVX512(extern const Build avx512_build;)

namespace {

template <class T>
void log_all(const T* in, T* out, uint64_t count) {
    SPMDX_FOR (uint64_t i = 0; i < count; ++i) out[i] = log(in[i]);
}
template <class Angle, class T>
void sincos_all(const Angle* in, T* out, uint64_t count) {
    SPMDX_FOR (uint64_t i = 0; i < count; ++i) {
        const SinCos<T> both = sincos_turn(in[i]);
        out[i] = both.sin;
        out[count + i] = both.cos;
    }
}

constexpr Build make_build(const char* name) {
    return {name,
            fill,
            reduce,
            map,
            streams,
            log_all<float>,
            log_all<double>,
            sincos_all<uint32_t, float>,
            sincos_all<uint64_t, double>};
}

}  // namespace
}  // namespace spmdx
