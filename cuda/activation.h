// Activations of neural networks and their slopes, for one element.
#pragma once

#include "scalar.h"

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

}  // namespace spmdx
