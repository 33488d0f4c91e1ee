// Continuous distributions of one draw each: the inverse distribution function at the element's bits, in
// float32 or float64.
#pragma once

#include "random.h"
#include "special.h"

namespace spmdx {
namespace {

// The element's bits x as the point u = (x + 1/2) / 2**32 (float64: x / 2**11 whole, 2**53) of the unit
// interval, given by the end that it is nearer to: v is u or 1 - u, in (0, 1/2]. Both ends are then as fine
// as floats are.
template <class T>
struct Point {
    T v;
    bool upper;
};
SPMDX_FN Point<float> point(uint32_t x) {
    const bool upper = x >> 31;
    const uint32_t near = x ^ (0u - uint32_t(upper));
    return {fma(float(int32_t(near)), 0x1p-32f, 0x1p-33f), upper};
}
SPMDX_FN Point<double> point(uint64_t x) {
    const bool upper = x >> 63;
    const uint64_t near = x ^ (0u - uint64_t(upper));
    return {fma(to_double(near >> 11), 0x1p-53, 0x1p-54), upper};
}

SPMDX_FN float negative_if(bool condition, float x) {
    return bit_cast<float>(bit_cast<uint32_t>(x) ^ (uint32_t(condition) << 31));
}
SPMDX_FN double negative_if(bool condition, double x) {
    return bit_cast<double>(bit_cast<uint64_t>(x) ^ (uint64_t(condition) << 63));
}

// -log(1 - u).
template <class T>
SPMDX_FN T unit_exponential(Point<T> u) {
    const T rest = T(1) - u.v, lost = u.v - (T(1) - rest);  // 1 - v = rest - lost
    const T x = pick(u.upper, u.v, rest);
    return pick(u.upper, T(0), lost / rest) - log(x);
}

struct Exponential {
    template <class T>
    SPMDX_METHOD T at(Point<T> u) const {
        return unit_exponential(u);
    }
};
struct Gumbel {  // of maxima
    template <class T>
    SPMDX_METHOD T at(Point<T> u) const {
        return T(0) - log(unit_exponential(u));
    }
};
struct Rayleigh {
    template <class T>
    SPMDX_METHOD T at(Point<T> u) const {
        return sqrt(T(2) * unit_exponential(u));
    }
};
struct Laplace {
    template <class T>
    SPMDX_METHOD T at(Point<T> u) const {
        return negative_if(u.upper, log(T(2) * u.v));
    }
};
struct Logistic {
    template <class T>
    SPMDX_METHOD T at(Point<T> u) const {
        return negative_if(!u.upper, log((T(1) - u.v) / u.v));
    }
};

// A distribution's function of the point, as a step.
template <class Distribution, class T>
struct Inverse {
    using Value = T;
    static constexpr int words = sizeof(T) / 4, values = 1;
    SPMDX_METHOD void step(const uint32_t* w, T* out) const {
        if constexpr (sizeof(T) == 8)
            out[0] = Distribution().at(point(join(w)));
        else
            out[0] = Distribution().at(point(w[0]));
    }
};

// The tangent of an angle that is an odd number of steps of a turn: never 0, never a quarter turn.
template <class T>
struct Cauchy {
    using Value = T;
    static constexpr int words = sizeof(T) / 4, values = 1;
    SPMDX_METHOD void step(const uint32_t* w, T* out) const {
        SinCos<T> direction;
        if constexpr (sizeof(T) == 8)
            direction = sincos_turn((join(w) >> 11) | 1u);
        else
            direction = sincos_turn(w[0] | 1u);
        out[0] = direction.sin / direction.cos;
    }
};

// (x + 1/2) / 2**32 exactly, or with 53 bits: a float64 in (0, 1] either way.
template <class T>
SPMDX_FN double open_unit(const uint32_t* w) {
    if constexpr (sizeof(T) == 8)
        return fma(to_double(join(w) >> 11), 0x1p-53, 0x1p-54);
    else
        return fma(to_double(w[0]), 0x1p-32, 0x1p-33);
}
template <class T>  // of the lanes of an element of type T
struct Open {
    using Value = double;
    static constexpr int words = sizeof(T) / 4, values = 1;
    SPMDX_METHOD void step(const uint32_t* w, double* out) const { out[0] = open_unit<T>(w); }
};
template <class T>
struct TruncatedNormal {
    using Value = T;
    static constexpr int words = sizeof(T) / 4, values = 1;
    Truncation bounds;
    SPMDX_METHOD void step(const uint32_t* w, T* out) const {
        out[0] = T(truncated(bounds, open_unit<T>(w)));
    }
};

// Both coordinates of one Box-Muller point, with variance 1/2 each.
template <class T>
struct Complex {
    T real, imaginary;
};
template <class T>
struct ComplexNormal {
    using Value = Complex<T>;
    static constexpr int words = sizeof(T) / 2, values = 1;
    SPMDX_METHOD void step(const uint32_t* w, Complex<T>* out) const {
        T u;
        SinCos<T> direction;
        if constexpr (sizeof(T) == 8) {
            u = fma(to_double(join(w) >> 11), 0x1p-53, 0x1p-54);
            direction = sincos_turn(join(w + 2) >> 11);
        } else {
            u = fma(float(w[0]), 0x1p-32f, 0x1p-33f);
            direction = sincos_turn(w[1]);
        }
        const T radius = sqrt(T(0) - log(u));
        out[0] = {radius * direction.cos, radius * direction.sin};
    }
};

// What dropout makes of an element.
SPMDX_FN float dropped(float x, float scale, bool keep) {
    return bit_cast<float>(bit_cast<uint32_t>(x * scale) & (0u - uint32_t(keep)));
}
SPMDX_FN double dropped(double x, double scale, bool keep) {
    return bit_cast<double>(bit_cast<uint64_t>(x * scale) & (0u - uint64_t(keep)));
}
template <class T>
SPMDX_FN Complex<T> dropped(Complex<T> x, T scale, bool keep) {
    return {dropped(x.real, scale, keep), dropped(x.imaginary, scale, keep)};
}
// Of 16 bits: the product is rounded once.
SPMDX_FN Half dropped(Half x, float scale, bool keep) {
    return {uint16_t(narrow_to(widen(x) * scale, Half()).bits & (0u - uint32_t(keep)))};
}
SPMDX_FN BFloat16 dropped(BFloat16 x, float scale, bool keep) {
    return {uint16_t(narrow_to(widen(x) * scale, BFloat16()).bits & (0u - uint32_t(keep)))};
}

}  // namespace
}  // namespace spmdx
