// JAX's formulas for bits, uniforms and integers, on Threefry's words: its numbers to the last bit.
#pragma once

#include "random.h"

namespace spmdx {
namespace {

// The low bits of the word.
template <class T>
struct JaxBits {
    using Value = T;
    static constexpr int words = sizeof(T) == 8 ? 2 : 1, values = 1;
    SPMDX_METHOD void step(const uint32_t* w, T* out) const {
        if constexpr (sizeof(T) == 8)
            out[0] = join(w);
        else
            out[0] = T(w[0]);
    }
};

// As many of an element's top bits as T has after the point. An element of bfloat16 has 8 bits.
template <class T>
struct JaxUnit;
template <>
struct JaxUnit<double> {
    static SPMDX_METHOD double of(const uint32_t* w) { return to_double(join(w) >> 12) * 0x1p-52; }
};
template <>
struct JaxUnit<float> {
    static SPMDX_METHOD float of(const uint32_t* w) { return float(int32_t(w[0] >> 9)) * 0x1p-23f; }
};
template <>
struct JaxUnit<Half> {
    static SPMDX_METHOD float of(const uint32_t* w) { return float(int32_t(w[0] >> 6 & 0x3FFu)) * 0x1p-10f; }
};
template <>
struct JaxUnit<BFloat16> {
    static SPMDX_METHOD float of(const uint32_t* w) { return float(int32_t(w[0] >> 1 & 0x7Fu)) * 0x1p-7f; }
};

SPMDX_FN uint32_t high_of_product(uint32_t a, uint32_t b) { return uint32_t(uint64_t(a) * b >> 32); }
SPMDX_FN uint64_t high_of_product(uint64_t a, uint64_t b) { return multiply_high(a, b); }

// x mod `divisor`, which is 2 or more, without a division (Granlund and Montgomery, "Division by invariant
// integers using multiplication", 1994): with L = floor(log2(divisor)), `magic` is 2**w less than
// ceil(2**(w + L + 1) / divisor), and `shift` is L; of a power of two they are 0 and L - 1.
template <class U>
struct Modulus {
    U divisor, magic;
    int shift;
    SPMDX_METHOD U operator()(U x) const {
        const U high = high_of_product(x, magic);
        return x - ((((x - high) >> 1) + high) >> shift) * divisor;
    }
};

// low + the remainder of a number of twice U's bits, from both keys of a split. With `whole` the span is all
// of U, and the second key gives the number alone. T is U or narrower.
template <class T, class U, bool whole>
struct JaxRandInt {
    using Value = T;
    static constexpr int words = sizeof(U) / 2, values = 1;
    U low, times;  // 2**w mod span, as JAX computes it
    Modulus<U> modulus;
    SPMDX_METHOD void step(const uint32_t* w, T* out) const {
        U above, below;
        if constexpr (sizeof(U) == 8) {
            above = join(w);
            below = join(w + 2);
        } else {
            above = w[0];
            below = w[1];
        }
        if constexpr (whole)
            out[0] = T(low + below);
        else
            out[0] = T(low + modulus(modulus(above) * times + modulus(below)));
    }
};

}  // namespace

template <class T, class U, bool whole>
struct Taking<JaxRandInt<T, U, whole>> {
    using How = Twice;
    static constexpr bool wide = sizeof(U) == 8;
};

}  // namespace spmdx
