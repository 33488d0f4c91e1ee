// The distributions: what the words of a Philox block become.
//
// A *step* takes `words` consecutive 32-bit lanes and gives `values` consecutive elements, so lane and
// element numbers keep step: 32-bit and narrower elements take one lane each, 64-bit elements two, and
// Box-Muller a pair of elements.
#pragma once

#include "scalar.h"
#include "threefry.h"

namespace spmdx {
namespace {

SPMDX_FN uint64_t join(const uint32_t* words) {
    uint64_t both;
    SPMDX_MEMCPY(&both, words, sizeof(both));
    return both;
}
SPMDX_FN float unit(uint32_t word) { return float(int32_t(word >> 8)) * 0x1p-24f; }
SPMDX_FN double unit(uint64_t word) { return to_double(word >> 11) * 0x1p-53; }

template <class T>
struct Bits {
    using Value = T;
    static constexpr int words = sizeof(T) == 8 ? 2 : 1, values = 1;
    SPMDX_METHOD void step(const uint32_t* w, T* out) const {
        if constexpr (sizeof(T) == 8)
            out[0] = join(w);
        else
            out[0] = T(w[0] >> (32 - 8 * sizeof(T)));
    }
};

// The uniform of [0, 1) that a step's words hold.
template <class Real>
struct Unit {
    static SPMDX_METHOD Real of(const uint32_t* w) {
        if constexpr (sizeof(Real) == 8)
            return unit(join(w));
        else
            return unit(w[0]);
    }
};

// low + u (high - low) with u in [0, 1), and no more than `last`, the greatest value below high. Narrow
// floats are truncated: 1 - 2**-24 is not to become 1.
template <class Real>
SPMDX_FN Real between(Real u, Real low, Real span, Real last) {
    const Real scaled = fma(u, span, low);
    return scaled > last ? last : scaled;
}
template <class T, class Real, class From = Unit<Real>>
struct Uniform {
    using Value = T;
    static constexpr int words = sizeof(Real) / 4, values = 1;
    Real low, span, last;
    SPMDX_METHOD void step(const uint32_t* w, T* out) const {
        const Real value = between(From::of(w), low, span, last);
        if constexpr (sizeof(T) == 2)
            out[0] = truncate_to(value, T());
        else
            out[0] = value;
    }
};

// Box and Muller, "A note on the generation of random normal deviates", 1958: the first lane of the pair
// gives the radius through u in (0, 1], the second the angle. The even element is the cosine, the odd one the
// sine.
template <class T>
struct Normal {
    using Value = T;
    static constexpr int words = 2, values = 2;
    SPMDX_METHOD void step(const uint32_t* w, T* out) const {
        const float u = fma(float(w[0]), 0x1p-32f, 0x1p-33f);
        const float radius = sqrt(-2.0f * log(u));
        const SinCos<float> direction = sincos_turn(w[1]);
        const float even = radius * direction.cos, odd = radius * direction.sin;
        if constexpr (sizeof(T) == 2) {
            out[0] = round_to(even, T());
            out[1] = round_to(odd, T());
        } else {
            out[0] = even;
            out[1] = odd;
        }
    }
};
template <>
struct Normal<double> {
    using Value = double;
    static constexpr int words = 4, values = 2;
    SPMDX_METHOD void step(const uint32_t* w, double* out) const {
        const double u = fma(to_double(join(w) >> 11), 0x1p-53, 0x1p-54);
        const double radius = sqrt(-2.0 * log(u));
        const SinCos<double> direction = sincos_turn(join(w + 2) >> 11);
        out[0] = radius * direction.cos;
        out[1] = radius * direction.sin;
    }
};

// low + the high word of (64-bit draw x span); a span of 0 is 2**64. T is unsigned: signed integers wrap to
// the same bits.
template <class T>
struct RandInt {
    using Value = T;
    static constexpr int words = 2, values = 1;
    uint64_t low, span;
    SPMDX_METHOD void step(const uint32_t* w, T* out) const {
        const uint64_t x = join(w);
        out[0] = T(low + (span ? multiply_high(x, span) : x));
    }
};
// The same where the span is below 2**32, in half the products.
template <class T>
struct SmallRandInt {
    using Value = T;
    static constexpr int words = 2, values = 1;
    uint64_t low, span;
    SPMDX_METHOD void step(const uint32_t* w, T* out) const {
        const uint64_t s = uint32_t(span), x = join(w);
        out[0] = T(low + (((x >> 32) * s + (uint32_t(x) * s >> 32)) >> 32));
    }
};

struct Bernoulli {
    using Value = uint8_t;
    static constexpr int words = 1, values = 1;
    float p;
    SPMDX_METHOD void step(const uint32_t* w, uint8_t* out) const { out[0] = unit(w[0]) < p; }
};

}  // namespace
}  // namespace spmdx
