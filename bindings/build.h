// One build of the kernels: the same source, compiled for one instruction set. All builds give the same bits.
#pragma once

#include "cuda/attempts.h"
#include "cuda/attend.h"
#include "cuda/map.h"
#include "cuda/reduce.h"
#include "cuda/residual.h"
#include "cuda/softmax.h"
#include "cuda/vector.h"

namespace spmdx {

// What neural networks need of one type.
template <class T>
struct Neural {
    void (*norm)(const Norm<T>&, uint64_t begin, uint64_t end);
    void (*norm_back)(const Norm<T>&, T* to_scale, T* to_bias, uint64_t begin, uint64_t end);
    void (*attend)(const Attention<T>&, const Head<T>*, int64_t count, T* memory);
    void (*attend_back)(const Attention<T>&, const Head<T>*, int64_t count, T* memory);
    void (*sum_exp)(const Scores<T>&, uint64_t begin, uint64_t end);
    void (*sum_low)(const Scores<T>&, uint64_t begin, uint64_t end);
    void (*scores_back)(const Scores<T>&, uint64_t begin, uint64_t end);
    void (*add_rows)(T* out, const int64_t* rows, const T* values, int64_t count, int64_t n, uint64_t begin,
                     uint64_t end);
    int64_t (*workspace)(const Attention<T>&);
    void (*sum_rows)(T* sum, const T* x, int64_t n, uint64_t begin, uint64_t end);
    void (*bias_gelu)(const Biased<T>&, uint64_t begin, uint64_t end);
    void (*bias_gelu_back)(const Biased<T>&, T* sum, uint64_t begin, uint64_t end);
    void (*rotate)(const Rotation<T>&, uint64_t begin, uint64_t end);
    void (*add_to_rows)(T* out, const T* x, const T* bias, int64_t n, uint64_t begin, uint64_t end);
    void (*adam)(const Adam<T>&, const AdamNumbers&, uint64_t begin, uint64_t end);
    void (*add_norm)(const AddNorm<T>&, uint64_t begin, uint64_t end);
    void (*add_norm_back)(const AddNorm<T>&, T* to_scale, T* to_bias, T* to_added, uint64_t begin,
                          uint64_t end);
    void (*softmax)(const Softmax<T>&, uint64_t begin, uint64_t end);
    void (*softmax_back)(const Softmax<T>&, uint64_t begin, uint64_t end);
    void (*softmax_columns)(const Softmax<T>&, uint64_t begin, uint64_t end, T* room);
    Parts (*softmax_parts)(const Softmax<T>&);
    void (*multiply)(const Multiplied<T>&, T* memory);  // null where a library is faster
    int64_t multiply_room;
    void (*apply)(const Applied<T>&, int64_t begin, int64_t end);
};

struct Build {
    const char* name;
    bool (*fill)(const Draw&, const Layout&, uint64_t begin, uint64_t end, void* out);
    void (*reduce)(Op, Number, void* out, const void* const* in, int count, uint64_t begin, uint64_t end);
    void (*map)(Function, void* out, const Operand* in, uint64_t begin, uint64_t end);
    void (*streams)(Stream, Key, const Layout&, const Operand* in, uint64_t begin, uint64_t end, double* out);
    void (*activate)(Activation, bool wide, void* out, const void* const* in, const Numbers&, uint64_t begin,
                     uint64_t end);
    Neural<float> neural32;
    Neural<double> neural64;
    void (*drop)(const Drop&, const Layout&, const void* x, uint64_t begin, uint64_t end, void* out);
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

template <class T>
constexpr Neural<T> make_neural() {
    return {norm_rows<T>,
            norm_rows_back<T>,
            attend<T>,
            attend_back<T>,
            sum_exp_rows<T>,
            sum_low_rows<T>,
            scores_back_rows<T>,
            add_rows<T>,
            Workspace<T>::need,
            sum_rows<T>,
            bias_gelu_rows<T>,
            bias_gelu_rows_back<T>,
            rotate_rows<T>,
            add_to_rows<T>,
            adam<T>,
            add_norm_rows<T>,
            add_norm_rows_back<T>,
            softmax_rows<T>,
            softmax_rows_back<T>,
            softmax_columns<T>,
            softmax_parts<T>,
            register_bytes > 16 ? multiply<T> : nullptr,
            multiply_room<T>,
            apply<T>};
}

constexpr Build make_build(const char* name) {
    return {name,
            fill,
            reduce,
            map,
            streams,
            activate,
            make_neural<float>(),
            make_neural<double>(),
            drop,
            log_all<float>,
            log_all<double>,
            sincos_all<uint32_t, float>,
            sincos_all<uint64_t, double>};
}

}  // namespace
}  // namespace spmdx
