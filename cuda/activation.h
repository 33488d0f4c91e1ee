// Activations of neural networks and their slopes, and what optimizers do, for one element.
#pragma once

#include "scalar.h"
#include "special.h"

namespace spmdx {

// 1 / (1 + exp(-x)), and that times (1 - that): exp's argument is bounded so that neither is 0 times
// infinity.
template <class T>
struct Sigmoid {
    T value, slope;
};
template <class T>
SPMDX_FN Sigmoid<T> sigmoid(T x) {
    constexpr T most = sizeof(T) == 4 ? T(80) : T(700);
    const T e = exp(x < -most ? most : -x);
    const T s = 1 / (1 + e);
    return {s, e * s * s};
}

// GELU with tanh is x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x**3).
template <class T>
constexpr T gelu_scale = T(1.5957691216057307117597842397375);  // 2 sqrt(2 / pi)
template <class T>
constexpr T gelu_cubic = T(0.044715 * 1.5957691216057307117597842397375);

template <class T>
SPMDX_FN T gelu(T x) {
    return x * sigmoid(x * (gelu_scale<T> + gelu_cubic<T> * (x * x))).value;
}
template <class T>
SPMDX_FN T gelu_slope(T x) {
    const T square = x * x;
    const Sigmoid<T> s = sigmoid(x * (gelu_scale<T> + gelu_cubic<T> * square));
    return s.value + s.slope * (x * (gelu_scale<T> + 3 * gelu_cubic<T> * square));
}
template <class T>
SPMDX_FN T silu(T x) {
    return x * sigmoid(x).value;
}
template <class T>
SPMDX_FN T silu_slope(T x) {
    const Sigmoid<T> s = sigmoid(x);
    return s.value + s.slope * x;
}

// The standard normal distribution function, and its density. In float32 the function at -z is t exp(-z*z /
// 2) Q(t), t = 1 / (1 + z / sqrt(8)), Q an interpolant on [t(15), 1]; z*z is kept in two floats. NaN stays.
template <class T>
struct Gauss {
    T below, density;
};
SPMDX_FN Gauss<float> normal_at(float x) {
    constexpr float q[] = {0x1.058672p-2f,   0x1.5fd386p-3f,   0x1.1e2deep-4f,  0x1.2a888ep-7f,
                           -0x1.606d74p-8f,  -0x1.a881f4p-10f, 0x1.94c6dep-11f, 0x1.b36082p-13f,
                           -0x1.552ce2p-13f, -0x1.a17d1ep-18f, 0x1.eb5224p-16f, -0x1.f2edc4p-18f};
    const float size = x < 0 ? -x : x, z = size > 15.0f ? 15.0f : size;  // beyond, it is 0 or 1
    const float square = 0.5f * z * z, low = fma(0.5f * z, z, -square);
    const float t = 1.0f / fma(z, 0x1.6a09e6p-2f, 1.0f), w = fma(2.0f, t, -1.0f);
    const float power = exp(-square), e = fma(-power, low, power);
    float sum = q[11];
    SPMDX_UNROLL for (int i = 10; i >= 0; --i) sum = fma(sum, w, q[i]);
    const float tail = sum * t * e;
    return {x > 0 ? 1.0f - tail : tail, e * 0x1.988454p-2f};
}
SPMDX_FN Gauss<double> normal_at(double x) {
    const double size = x < 0 ? -x : x, z = size > 40.0 ? 40.0 : size;
    return {ndtr(x), exp(-0.5 * z * z) * 0x1.9884533d43651p-2};
}

// GELU with erf.
template <class T>
SPMDX_FN T gelu_erf(T x) {
    return x * normal_at(x).below;
}
template <class T>
SPMDX_FN T gelu_erf_slope(T x) {
    const Gauss<T> at = normal_at(x);
    const T most = T(40);  // the density is 0 long before, also beside an infinity
    return at.below + (x > most ? most : x < -most ? -most : x) * at.density;
}

// What passes through softmax to an element (or to a register of them), of which y came out, and through its
// logarithm: `sum` is that of g y over the row, or that of g.
template <class F, class T>
SPMDX_FN F softmax_slope(F g, F y, T sum) {
    return y * (g - sum);
}
template <class F, class T>
SPMDX_FN F log_softmax_slope(F g, F y, T sum) {
    return g - exp_or_zero(y) * sum;
}

// What optimizers do to an element: x a + y b and x a + y**2 b, and Adam's step of the means of g and g**2.
template <class T>
SPMDX_FN T mix(T x, T a, T y, T b) {
    return x * a + y * b;
}
template <class T>
SPMDX_FN T mix_square(T x, T a, T y, T b) {
    return y * y * b + x * a;
}
template <class T>
SPMDX_FN T adam_step(T m, T v, T rate, T root, T eps) {
    return m / (sqrt(v) / root + eps) * -rate;
}

}  // namespace spmdx
