// Special functions in float64, on log and exp of scalar.h: what distributions need beside them. Close, not
// exact: tests/kernels/test_special.py states the bounds. The same bits on every processor.
#pragma once

#include "scalar.h"

namespace spmdx {

// One of two values without a branch, for vector loops: see choose.
SPMDX_FN float pick(bool first, float a, float b) {
    return bit_cast<float>(choose(first, bit_cast<uint32_t>(a), bit_cast<uint32_t>(b)));
}
SPMDX_FN double pick(bool first, double a, double b) {
    const uint64_t mask = 0u - uint64_t(first);
    return bit_cast<double>((bit_cast<uint64_t>(a) & mask) | (bit_cast<uint64_t>(b) & ~mask));
}

// abs(x).
SPMDX_FN double size(double x) { return bit_cast<double>(bit_cast<uint64_t>(x) & 0x7FFFFFFFFFFFFFFFull); }

// The greatest whole number up to x: 2**52 takes the fraction away. (For the library's, no vector loop.)
SPMDX_FN double floor(double x) {
    const double whole = bit_cast<double>(0x4330000000000000ull | (bit_cast<uint64_t>(x) & (1ull << 63)));
    const double near = (x + whole) - whole;
    return pick(size(x) < 0x1p52, near - pick(near > x, 1.0, 0.0), x);
}

// log(1 + x) for x > -1: what the sum loses in rounding is put back to first order.
SPMDX_FN double log1p(double x) {
    const double sum = 1.0 + x, lost = x - (sum - 1.0);
    return log(sum) + lost / sum;
}

// a[0] + a[1] x + ... by Horner's scheme.
template <int n>
SPMDX_FN double polynomial(const double (&a)[n], double x) {
    double sum = a[n - 1];
    SPMDX_UNROLL for (int i = n - 2; i >= 0; --i) sum = fma(sum, x, a[i]);
    return sum;
}

// The standard normal distribution function. Of x <= 0 it is erfc(z) / 2 with z = -x / sqrt(2), and
//   erfc(z) = t exp(-z*z + P(t)), t = 2 / (2 + z),
// P a Chebyshev interpolant (the form of Numerical Recipes); z*z is kept in two floats.
SPMDX_FN double ndtr(double x) {
    constexpr double p[] = {
        -0x1.57f564e956ebep-1,  0x1.5864b151b8570p-1,   0x1.83d61c52414c6p-5,   -0x1.802b39089a850p-5,
        -0x1.43821ef9deb7dp-7,  0x1.212cf33ef45aep-7,   0x1.cd18086a78636p-10,  -0x1.337867f21e95dp-9,
        -0x1.32b3aebe0048cp-13, 0x1.6133a3376efe1p-11,  -0x1.89274ad539c07p-14, -0x1.6d8a2ff1760fap-13,
        0x1.2b7a9c673fa3cp-14,  0x1.0a4c54cc5c2e7p-15,  -0x1.fa7cf609a48efp-16, 0x1.2790b8ec9746ap-23,
        0x1.1f68b4ade0cd0p-17,  -0x1.8ba63c88abe6ep-19, -0x1.56d74dd1b000bp-20, 0x1.4f7e8bc104d06p-20,
        -0x1.5d39d9f0587efp-23, -0x1.0bca4a4a3ad4bp-22, 0x1.3ed7f7681167fp-23,  0x1.70cc8d2064b00p-30,
        -0x1.39cf1246eb39ap-25, 0x1.810b19bbff30ap-27,  0x1.ba53754371178p-29,  -0x1.0478c1ed4177ap-29,
        0x1.080cec3b30728p-33};
    const bool above = x > 0;
    const double size = above ? x : -x;
    const double z = size < 40.0 ? size : 40.0;  // beyond, it is 0 or 1
    const double t = 2.0 / fma(z, 0x1.6a09e667f3bcdp-1, 2.0);
    const double square = 0.5 * z * z, low = fma(0.5 * z, z, -square);
    const double tail = 0.5 * t * exp(-square) * exp(polynomial(p, fma(2.0, t, -1.0)) - low);
    return pick(above, 1.0 - tail, tail);
}

// Its inverse, for p in (0, 1): Wichura, "Algorithm AS 241: the percentage points of the normal
// distribution", 1988.
SPMDX_FN double ndtri(double p) {
    constexpr double a[] = {3.3871328727963666080e0,  1.3314166789178437745e+2, 1.9715909503065514427e+3,
                            1.3731693765509461125e+4, 4.5921953931549871457e+4, 6.7265770927008700853e+4,
                            3.3430575583588128105e+4, 2.5090809287301226727e+3};
    constexpr double b[] = {1.0,
                            4.2313330701600911252e+1,
                            6.8718700749205790830e+2,
                            5.3941960214247511077e+3,
                            2.1213794301586595867e+4,
                            3.9307895800092710610e+4,
                            2.8729085735721942674e+4,
                            5.2264952788528545610e+3};
    constexpr double c[] = {1.42343711074968357734e0,  4.63033784615654529590e0, 5.76949722146069140550e0,
                            3.64784832476320460504e0,  1.27045825245236838258e0, 2.41780725177450611770e-1,
                            2.27238449892691845833e-2, 7.74545014278341407640e-4};
    constexpr double d[] = {1.0,
                            2.05319162663775882187e0,
                            1.67638483018380384940e0,
                            6.89767334985100004550e-1,
                            1.48103976427480074590e-1,
                            1.51986665636164571966e-2,
                            5.47593808499534494600e-4,
                            1.05075007164441684324e-9};
    constexpr double e[] = {6.65790464350110377720e0,  5.46378491116411436990e0,  1.78482653991729133580e0,
                            2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
                            2.71155556874348757815e-5, 2.01033439929228813265e-7};
    constexpr double f[] = {1.0,
                            5.99832206555887937690e-1,
                            1.36929880922735805310e-1,
                            1.48753612908506148525e-2,
                            7.86869131145613259100e-4,
                            1.84631831751005468180e-5,
                            1.42151175831644588870e-7,
                            2.04426310338993978564e-15};
    const double q = p - 0.5, size = q < 0 ? -q : q;
    const bool middle = size <= 0.425;
    const double near = fma(-q, q, 0.180625);
    const double r = sqrt(-log(q < 0 ? p : 1.0 - p));  // not a number where p is 1; not used in the middle
    const bool far = r > 5.0;
    const double x = r - pick(far, 5.0, 1.6);
    const double above = pick(far, polynomial(e, x), polynomial(c, x));
    const double below = pick(far, polynomial(f, x), polynomial(d, x));
    const double tail = above / below;
    return pick(middle, q * polynomial(a, near) / polynomial(b, near), q < 0 ? -tail : tail);
}

// A standard normal confined to [low, high], low < high, at u in (0, 1]. Where the interval lies more above 0
// than below, it is mirrored, because distribution functions are accurate in the lower tail.
struct Truncation {
    double low, high, from, width;
    bool mirrored;
};
SPMDX_FN Truncation truncation(double low, double high) {
    const bool mirrored = low + high > 0;
    const double bottom = mirrored ? -high : low, top = mirrored ? -low : high;
    const double from = ndtr(bottom);
    return {bottom, top, from, ndtr(top) - from, mirrored};
}
SPMDX_FN double truncated(const Truncation& t, double u) {
    const double p = fma(u, t.width, t.from);
    // A subnormal p, and so a normal one's logarithm, is out of reach of log: the bounds take over below.
    const double x = ndtri(p < 0x1p-1022 ? 0x1p-1022 : p > 1.0 - 0x1p-53 ? 1.0 - 0x1p-53 : p);
    const double inside = x < t.low ? t.low : x > t.high ? t.high : x;
    return t.mirrored ? -inside : inside;
}

// Loader, "Fast and accurate computation of binomial probabilities", 2000: probabilities without
// cancellation.

// log(n!) less Stirling's formula, for a whole number n >= 0.
SPMDX_FN double stirling_error(double n) {
    constexpr double exact[] = {0.0,
                                0.081061466795327258219670264,
                                0.041340695955409294093822081,
                                0.0276779256849983391487892927,
                                0.020790672103765093111522771,
                                0.0166446911898211921631948653,
                                0.013876128823070747998745727,
                                0.0118967099458917700950557241,
                                0.010411265261972096497478567,
                                0.0092554621827127329177286366,
                                0.008330563433362871256469318,
                                0.0075736754879518407949720242,
                                0.006942840107209529865664152,
                                0.0064089941880042070684396310,
                                0.005951370112758847735624416,
                                0.0055547335519628013710386899};
    const bool small = n < 16;  // a table is no vector loop: what uses this takes it as an argument
    const double inverse = 1.0 / n, square = inverse * inverse;
    constexpr double series[] = {1.0 / 12, -1.0 / 360, 1.0 / 1260, -1.0 / 1680, 1.0 / 1188};
    return small ? exact[int(n)] : inverse * polynomial(series, square);
}

// x log(x / mean) + mean - x. Near the mean by the series of log((1 + v) / (1 - v)), v = gap / sum.
SPMDX_FN double deviance(double x, double mean) {
    constexpr double series[] = {1.0 / 3, 1.0 / 5, 1.0 / 7, 1.0 / 9, 1.0 / 11, 1.0 / 13, 1.0 / 15, 1.0 / 17};
    const double gap = x - mean, v = gap / (x + mean), square = v * v;
    const double near = gap * v + 2.0 * x * v * square * polynomial(series, square);
    return pick(square < 0.01, near, x * log(x / mean) + mean - x);
}

// log of the probability of k, a whole number; `errors` are the Stirling errors of its factorials.
SPMDX_FN double log_poisson(double k, double mean, double errors) {
    const double some = -errors - deviance(k, mean) - 0.5 * log(0x1.921fb54442d18p+2 * k);
    return pick(k == 0, -mean, some);
}
SPMDX_FN double log_poisson(double k, double mean) { return log_poisson(k, mean, stirling_error(k)); }

SPMDX_FN double binomial_errors(double k, double n) {
    return stirling_error(n) - stirling_error(k) - stirling_error(n - k);
}
SPMDX_FN double log_binomial(double k, double n, double p, double errors) {
    const double rest = n - k;
    const double some = errors - deviance(k, n * p) - deviance(rest, n * (1.0 - p)) -
                        0.5 * log(0x1.921fb54442d18p+2 * k * (rest / n));
    return pick(k == 0, n * log1p(-p), pick(k == n, n * log(p), some));
}
SPMDX_FN double log_binomial(double k, double n, double p) {
    return log_binomial(k, n, p, binomial_errors(k, n));
}

}  // namespace spmdx
