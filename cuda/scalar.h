// Elementary functions with the same bits on every processor: log, exp and sin/cos within 0.75 ulp, and
// narrow floats.
//
// Branch-free, so that a loop over them vectorises, and without tables. Polynomials are Chebyshev
// interpolants; tests/kernels/test_scalar.py measures every function against higher precision.
#pragma once

#include "portable.h"

namespace spmdx {

// log(x) for a normal positive x. x = 2**k m with m in [sqrt(1/2), sqrt(2)), f = m - 1:
//   log(x) = k log(2) + f - f*f/2 + f**3 P(f),
// where all but the last term, which is under 6 % of the result, is kept in two floats.
SPMDX_FN float log(float x) {
    const uint32_t shifted = bit_cast<uint32_t>(x) - 0x3F3504F3u;
    const float k = float(int32_t(shifted) >> 23);
    const float f = bit_cast<float>((shifted & 0x007FFFFFu) + 0x3F3504F3u) - 1.0f;
    float p = 0x1.1d8ea6p-4f;
    p = fma(p, f, -0x1.d635bcp-4f);
    p = fma(p, f, 0x1.dea282p-4f);
    p = fma(p, f, -0x1.fcf4c6p-4f);
    p = fma(p, f, 0x1.23d21ap-3f);
    p = fma(p, f, -0x1.555b4ap-3f);
    p = fma(p, f, 0x1.999d5ap-3f);
    p = fma(p, f, -0x1.fffffcp-3f);
    p = fma(p, f, 0x1.555554p-2f);
    const float half = 0.5f * f * f, half_low = fma(0.5f * f, f, -half);
    const float whole = k * 0x1.62ep-1f;  // exact: 0x1.62ep-1 is log(2) in 14 bits
    const float a = whole + f, a_low = (whole - a) + f;
    const float b = a - half, b_low = (a - b) - half;
    const float small = fma(k, 0x1.0bfbe8p-15f, a_low) + (b_low - half_low);
    return b + fma(2.0f * half * f, p, small);
}

// As for float32, but f**3 P(f) is s (f*f/2 + R(s*s)), s = f / (2 + f), which needs half as many terms.
SPMDX_FN double log(double x) {
    const uint64_t shifted = bit_cast<uint64_t>(x) - 0x3FE6A09E667F3BCDull;
    // The exponent, signed, through a biased integer in the low bits of 2**52: 64-bit shifts that keep the
    // sign and conversions from 64-bit integers are no vector instructions before AVX-512.
    const uint64_t biased = (shifted >> 52) ^ 0x800u;
    const double k = bit_cast<double>(biased | 0x4330000000000000ull) - (0x1p52 + 0x800);
    const double f = bit_cast<double>((shifted & 0x000FFFFFFFFFFFFFull) + 0x3FE6A09E667F3BCDull) - 1.0;
    const double s = f / (2.0 + f), z = s * s;
    double p = 0x1.2b584aae78a57p-3;
    p = fma(p, z, 0x1.39fe606542ddep-3);
    p = fma(p, z, 0x1.7462b4ab2ef6bp-3);
    p = fma(p, z, 0x1.c71c62e5800a1p-3);
    p = fma(p, z, 0x1.2492492df148dp-2);
    p = fma(p, z, 0x1.99999999952e2p-2);
    p = fma(p, z, 0x1.5555555555558p-1);
    const double half = 0.5 * f * f, half_low = fma(0.5 * f, f, -half);
    const double whole = k * 0x1.62e42fefa2p-1;  // exact: log(2) in 40 bits
    const double a = whole + f, a_low = (whole - a) + f;
    const double b = a - half, b_low = (a - b) - half;
    const double small = fma(k, 0x1.9ef35793c7673p-41, a_low) + (b_low - half_low);
    return b + fma(s, fma(z, p, half), small);
}

// What exp is made of, for numbers here and for registers of them in lanes.h.
template <class F>
struct Arithmetic;
template <>
struct Arithmetic<float> {
    using Item = float;
    using Bits = uint32_t;
    static SPMDX_METHOD float all(float x) { return x; }
    static SPMDX_METHOD float fused(float a, float b, float c) { return fma(a, b, c); }
};
template <>
struct Arithmetic<double> {
    using Item = double;
    using Bits = uint64_t;
    static SPMDX_METHOD double all(double x) { return x; }
    static SPMDX_METHOD double fused(double a, double b, double c) { return fma(a, b, c); }
};
template <class F>
using Item = typename Arithmetic<F>::Item;
template <class F>
SPMDX_FN F all(Item<F> x) {
    return Arithmetic<F>::all(x);
}
template <class F>
SPMDX_FN F fused(F a, F b, F c) {
    return Arithmetic<F>::fused(a, b, c);
}

// exp(x): 0 from the underflow of float32 down, infinity above; NaN stays. x = k log(2) + r, and of
//   exp(r) = 1 + r + r*r P(r)
// the first sum is kept in two floats. 2**k goes in by halves, so that a subnormal result is rounded once
// more. (Bounds have names: of calls on either side of a choice NVRTC makes branches, and spills registers.)
template <class F>
SPMDX_FN F exp_of_floats(F x) {
    using Bits = typename Arithmetic<F>::Bits;
    const F most = all<F>(90.0f), least = all<F>(-110.0f), y = x > most ? most : x < least ? least : x;
    const F shifted = fused(y, all<F>(0x1.715476p+0f), all<F>(0x1.8p23f));  // the integer k in the low bits
    const F k = shifted - 0x1.8p23f;
    const F r = fused(k, all<F>(-0x1.62ep-1f), y), r_low = k * -0x1.0bfbe8p-15f;  // r exact
    const F t = r + r_low;
    F p = all<F>(0x1.a124f2p-13f);
    p = fused(p, t, all<F>(0x1.6d4324p-10f));
    p = fused(p, t, all<F>(0x1.1110ep-7f));
    p = fused(p, t, all<F>(0x1.5554eap-5f));
    p = fused(p, t, all<F>(0x1.555556p-3f));
    p = fused(p, t, all<F>(0.5f));
    const F one = 1.0f + r, one_low = (1.0f - one) + r;
    const F value = one + (one_low + fused(F(t * t), p, r_low));
    const Bits biased = bit_cast<Bits>(shifted) - 0x4B400000u + 254u, half = biased >> 1;  // k + 254
    return value * bit_cast<F>(half << 23) * bit_cast<F>((biased - half) << 23);
}
template <class F>
SPMDX_FN F exp_of_doubles(F x) {
    using Bits = typename Arithmetic<F>::Bits;
    const F most = all<F>(710.0), least = all<F>(-750.0), y = x > most ? most : x < least ? least : x;
    const F shifted = fused(y, all<F>(0x1.71547652b82fep+0), all<F>(0x1.8p52));
    const F k = shifted - 0x1.8p52;
    const F r = fused(k, all<F>(-0x1.62e42fefa2p-1), y), r_low = k * -0x1.9ef35793c7673p-41;
    const F t = r + r_low;
    F p = all<F>(0x1.1f730349868cep-29);
    p = fused(p, t, all<F>(0x1.af4de97ca4194p-26));
    p = fused(p, t, all<F>(0x1.27e4db646b17ep-22));
    p = fused(p, t, all<F>(0x1.71de0231960ebp-19));
    p = fused(p, t, all<F>(0x1.a01a01a6d889cp-16));
    p = fused(p, t, all<F>(0x1.a01a01abe7fe1p-13));
    p = fused(p, t, all<F>(0x1.6c16c16c162d4p-10));
    p = fused(p, t, all<F>(0x1.11111111100dcp-7));
    p = fused(p, t, all<F>(0x1.5555555555556p-5));
    p = fused(p, t, all<F>(0x1.5555555555557p-3));
    p = fused(p, t, all<F>(0.5));
    const F one = 1.0 + r, one_low = (1.0 - one) + r;
    const F value = one + (one_low + fused(F(t * t), p, r_low));
    const Bits biased = bit_cast<Bits>(shifted) - 0x4338000000000000ull + 2046ull, half = biased >> 1;
    return value * bit_cast<F>(half << 52) * bit_cast<F>((biased - half) << 52);
}
SPMDX_FN float exp(float x) { return exp_of_floats(x); }
SPMDX_FN double exp(double x) { return exp_of_doubles(x); }

// exp(x), where 0 costs nothing: as a product that underflows it would take a processor's long way, and what
// a mask hides is most of some rows. NaN stays.
template <class F>
SPMDX_FN F exp_or_zero(F x) {
    constexpr bool narrow = sizeof(Item<F>) == 4;
    const auto zero = x < Item<F>(narrow ? -104 : -746);  // where exp is 0 in any case
    const F none{}, one = all<F>(1), y = zero ? none : x, by = zero ? none : one;
    // A product, and not a choice of values that took work: of one a compiler would make a branch.
    if constexpr (narrow)
        return exp_of_floats(y) * by;
    else
        return exp_of_doubles(y) * by;
}

template <class T>
struct SinCos {
    T sin, cos;
};

// Turns (cos, sin) of an angle by `quadrant` quarters of a turn.
template <class T, class Int>
SPMDX_FN SinCos<T> turn(T sin, T cos, Int quadrant) {
    constexpr int top = 8 * sizeof(Int) - 2;
    const Int s = bit_cast<Int>(sin), c = bit_cast<Int>(cos), swap = (s ^ c) & (Int(0) - (quadrant & 1));
    const Int sin_sign = (quadrant & 2) << top, cos_sign = ((quadrant + 1) & 2) << top;
    return {bit_cast<T>(s ^ swap ^ sin_sign), bit_cast<T>(c ^ swap ^ cos_sign)};
}

// sin and cos of `angle` * 2**-32 turns. The angle is reduced to an eighth of a turn either side of a
// quarter's multiple in integers, exactly; theta + theta_low is what is left, in radians.
SPMDX_FN SinCos<float> sincos_turn(uint32_t angle) {
    const uint32_t quadrant = (angle + 0x20000000u) >> 30;
    const int32_t rest = int32_t(angle - (quadrant << 30));
    const float high = float(rest), low = float(rest - int32_t(high));
    const float theta = high * 0x1.921fb6p-30f;
    const float theta_low =
        fma(high, 0x1.921fb6p-30f, -theta) + fma(high, -0x1.777a5cp-55f, low * 0x1.921fb6p-30f);
    const float t = theta * theta;
    float s = 0x1.6dbe08p-19f;
    s = fma(s, t, -0x1.a013a8p-13f);
    s = fma(s, t, 0x1.11110ep-7f);
    s = fma(s, t, -0x1.555556p-3f);
    float c = 0x1.9bd89cp-16f;
    c = fma(c, t, -0x1.6c12d2p-10f);
    c = fma(c, t, 0x1.555554p-5f);
    const float half = 0.5f * t, half_low = fma(0.5f * theta, theta, -half);
    const float w = 1.0f - half, w_low = (1.0f - w) - half;
    const float sin_low =
        fma(theta * half_low, -1.0f / 3.0f, w * theta_low);  // what t and theta lost in rounding
    const float sin = theta + fma(theta * t, s, sin_low);
    const float cos = w + fma(t * t, c, (w_low - half_low) - theta * theta_low);
    return turn(sin, cos, quadrant);
}

// sin and cos of `angle` * 2**-53 turns, angle < 2**53.
SPMDX_FN SinCos<double> sincos_turn(uint64_t angle) {
    const uint64_t moved = angle + (1ull << 50), quadrant = moved >> 51;
    const uint64_t rest = moved & ((1ull << 51) - 1);
    const double r = bit_cast<double>(rest | 0x4330000000000000ull) - (0x1p52 + 0x1p50);
    const double theta = r * 0x1.921fb54442d18p-51;
    const double theta_low = fma(r, 0x1.921fb54442d18p-51, -theta) + r * 0x1.1a62633145c07p-105;
    const double t = theta * theta;
    double s = -0x1.ab17d404de5b3p-41;
    s = fma(s, t, 0x1.61217f0b800d5p-33);
    s = fma(s, t, -0x1.ae645412c560cp-26);
    s = fma(s, t, 0x1.71de3a546095bp-19);
    s = fma(s, t, -0x1.a01a01a019938p-13);
    s = fma(s, t, 0x1.111111111111p-7);
    s = fma(s, t, -0x1.5555555555555p-3);
    double c = -0x1.907da367a37cbp-37;
    c = fma(c, t, 0x1.1eeb68e93b64cp-29);
    c = fma(c, t, -0x1.27e4fa17da09ep-22);
    c = fma(c, t, 0x1.a01a019f4eb01p-16);
    c = fma(c, t, -0x1.6c16c16c16967p-10);
    c = fma(c, t, 0x1.5555555555555p-5);
    const double half = 0.5 * t, half_low = fma(0.5 * theta, theta, -half);
    const double w = 1.0 - half, w_low = (1.0 - w) - half;
    const double sin_low = fma(theta * half_low, -1.0 / 3.0, w * theta_low);
    const double sin = theta + fma(theta * t, s, sin_low);
    const double cos = w + fma(t * t, c, (w_low - half_low) - theta * theta_low);
    return turn(sin, cos, quadrant);
}

// An integer below 2**53 as a double, exactly: its halves go into the low bits of 2**84 and 2**52.
SPMDX_FN double to_double(uint64_t x) {
    const double high = bit_cast<double>((x >> 32) | 0x4530000000000000ull);
    const double low = bit_cast<double>((x & 0xFFFFFFFFull) | 0x4330000000000000ull);
    return (high - 0x1.00000001p84) + low;
}

// The high half of the 128-bit product.
SPMDX_FN uint64_t multiply_high(uint64_t a, uint64_t b) {
    const uint64_t a0 = uint32_t(a), a1 = a >> 32, b0 = uint32_t(b), b1 = b >> 32;
    const uint64_t middle = a1 * b0 + (a0 * b0 >> 32);
    const uint64_t other = a0 * b1 + uint32_t(middle);
    return a1 * b1 + (middle >> 32) + (other >> 32);
}

// A choice by masks: of two values that took floating-point work, a compiler would make a branch, and no
// vector loop.
SPMDX_FN uint32_t choose(bool first, uint32_t a, uint32_t b) {
    const uint32_t mask = 0u - uint32_t(first);
    return (a & mask) | (b & ~mask);
}

SPMDX_FN float widen(BFloat16 x) { return bit_cast<float>(uint32_t(x.bits) << 16); }
SPMDX_FN float widen(Half x) {
    const uint32_t sign = uint32_t(x.bits & 0x8000u) << 16, size = x.bits & 0x7FFFu;
    const uint32_t special = 0x7F800000u | size << 13;   // infinity, no number
    const uint32_t normal = (size << 13) + 0x38000000u;  // the exponent's bias is 112 less
    const uint32_t subnormal = bit_cast<uint32_t>(float(int32_t(size)) * 0x1p-24f);
    return bit_cast<float>(sign | choose(size < 0x0400u, subnormal, choose(size < 0x7C00u, normal, special)));
}

// Rounded to nearest, ties to even; x is no NaN, and for Half below 65,520 in size.
SPMDX_FN BFloat16 round_to(float x, BFloat16) {
    const uint32_t bits = bit_cast<uint32_t>(x);
    return {uint16_t((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}
SPMDX_FN Half round_to(float x, Half) {
    const uint32_t bits = bit_cast<uint32_t>(x), sign = (bits >> 16) & 0x8000u, size = bits & 0x7FFFFFFFu;
    // Below 2**-14 the result is subnormal: adding 0.5 rounds to a multiple of 2**-24 in the low bits.
    const uint32_t subnormal = bit_cast<uint32_t>(bit_cast<float>(size) + 0.5f) - 0x3F000000u;
    const uint32_t normal = (size - 0x38000000u + 0x0FFFu + ((size >> 13) & 1u)) >> 13;
    return {uint16_t(sign | choose(size < 0x38800000u, subnormal, normal))};
}

// The same for any x: too large a Half is infinite, and NaN stays.
SPMDX_FN BFloat16 narrow_to(float x, BFloat16) {
    const uint32_t bits = bit_cast<uint32_t>(x);
    const bool number = (bits & 0x7FFFFFFFu) <= 0x7F800000u;
    return {uint16_t(choose(number, round_to(x, BFloat16()).bits, (bits >> 16) | 0x0040u))};
}
SPMDX_FN Half narrow_to(float x, Half) {
    const uint32_t bits = bit_cast<uint32_t>(x), sign = (bits >> 16) & 0x8000u, size = bits & 0x7FFFFFFFu;
    const uint32_t finite = round_to(bit_cast<float>(choose(size < 0x477FF000u, bits, 0u)), Half()).bits;
    const uint32_t special = sign | choose(size <= 0x7F800000u, 0x7C00u, 0x7E00u);
    return {uint16_t(choose(size < 0x477FF000u, finite, special))};
}

// Truncated towards zero; the same ranges.
SPMDX_FN BFloat16 truncate_to(float x, BFloat16) { return {uint16_t(bit_cast<uint32_t>(x) >> 16)}; }
SPMDX_FN Half truncate_to(float x, Half) {
    const uint32_t bits = bit_cast<uint32_t>(x), sign = (bits >> 16) & 0x8000u, size = bits & 0x7FFFFFFFu;
    const bool tiny = size < 0x38800000u;  // below 2**-14: a multiple of 2**-24
    const uint32_t subnormal = uint32_t(int32_t(bit_cast<float>(choose(tiny, size, 0u)) * 0x1p24f));
    const uint32_t normal = (size - 0x38000000u) >> 13;
    return {uint16_t(sign | choose(tiny, subnormal, normal))};
}

}  // namespace spmdx
