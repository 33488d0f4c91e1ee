// Distributions that take a varying number of draws: each element has a stream of its own, fold_in(key, i) of
// its index i, so that an element does not depend on what others drew. All in float64; rejection methods that
// take one block of the stream an attempt.
#pragma once

#include "random.h"
#include "special.h"

namespace spmdx {
namespace {

// Block number `number` of a key's stream, as two uniforms in (0, 1] of 53 bits and its four lanes.
struct Attempt {
    uint64_t first, second;
    SPMDX_METHOD Attempt(Key key, uint64_t number) { block(key, number, first, second); }
    static SPMDX_METHOD double uniform(uint64_t bits) { return fma(to_double(bits >> 11), 0x1p-53, 0x1p-54); }
    SPMDX_METHOD double u() const { return uniform(first); }
    SPMDX_METHOD double v() const { return uniform(second); }
};

constexpr uint64_t element_streams =
    (1ull << 63) + 1;                         // fold_in(key, this) is what elements fold their index into
constexpr uint64_t extra_block = 1ull << 63;  // far from the attempts

// Marsaglia and Tsang, "A simple method for generating gamma variables", 2000. A normal of 53 bits of radius
// and 32 of angle and a uniform of 32 bits make one attempt. Of alpha < 1: the value for alpha + 1 times
// U**(1 / alpha), taken as logarithms if `logarithm`, which do not underflow.
SPMDX_FN double gamma(Key key, double alpha, bool logarithm) {
    const double infinity = bit_cast<double>(0x7FF0000000000000ull);
    if (!(alpha > 0) || alpha == infinity) return logarithm && alpha == 0 ? -infinity : alpha;
    const bool small = alpha < 1;
    const double d = (small ? alpha + 1 : alpha) - 1.0 / 3, c = 1.0 / sqrt(9.0 * d);
    double value = d;
    for (uint64_t number = 0;; ++number) {
        const Attempt attempt(key, number);
        const double radius = sqrt(-2.0 * log(attempt.u()));
        const double x = radius * sincos_turn(uint64_t(uint32_t(attempt.second)) << 21).cos,
                     t = fma(c, x, 1.0);
        if (t <= 0) continue;
        const double v = t * t * t, u = fma(to_double(attempt.second >> 32), 0x1p-32, 0x1p-33);
        const double square = x * x;
        value = d * v;
        if (u < 1.0 - 0.0331 * (square * square)) break;
        if (log(u) < 0.5 * square + d * (1.0 - v + log(v))) break;
    }
    const double boost = small ? log(Attempt(key, extra_block).u()) / alpha : 0.0;
    if (logarithm) return log(value) + boost;
    return small ? value * exp(boost) : value;
}

// Below 10 by inversion, else by transformed rejection with squeeze: Hoermann, "The transformed rejection
// method for generating Poisson random variables", 1993. Whole numbers as float64.
SPMDX_FN double poisson(Key key, double mean) {
    if (!(mean > 0)) return 0;
    if (mean < 10) {
        double rest = Attempt(key, 0).u(), p = exp(-mean), k = 0;
        while (rest > p && k < 200) {
            rest -= p;
            k += 1;
            p *= mean / k;
        }
        return k;
    }
    const double b = 0.931 + 2.53 * sqrt(mean), a = -0.059 + 0.02483 * b;
    const double inverse = 1.1239 + 1.1328 / (b - 3.4), squeeze = 0.9277 - 3.6224 / (b - 2.0);
    for (uint64_t number = 0;; ++number) {
        const Attempt attempt(key, number);
        const double u = attempt.u() - 0.5, v = attempt.v(), s = 0.5 - (u < 0 ? -u : u);
        const double k = floor((2.0 * a / s + b) * u + mean + 0.43);
        if (s >= 0.07 && v <= squeeze) return k;
        if (!(k >= 0 && k < 0x1p62) || (s < 0.013 && v > s)) continue;
        if (log(v * inverse / (a / (s * s) + b)) <= log_poisson(k, mean)) return k;
    }
}

// Below a mean of 10 by inversion, else by transformed rejection: Hoermann, "The generation of binomial
// random variates", 1993. n is a whole number below 2**53. Of p > 1/2: n less the value for 1 - p.
SPMDX_FN double binomial(Key key, double n, double chance) {
    const double p = chance > 0.5 ? 1.0 - chance : chance;
    double k = 0;
    if (!(n > 0 && p > 0)) {
        k = 0;
    } else if (n * p < 10) {
        const double odds = p / (1.0 - p);
        double rest = Attempt(key, 0).u(), probability = exp(n * log1p(-p));
        while (rest > probability && k < n && k < 200) {
            rest -= probability;
            probability *= (n - k) / (k + 1) * odds;
            k += 1;
        }
    } else {
        const double spread = sqrt(n * p * (1.0 - p)), b = 1.15 + 2.53 * spread;
        const double a = -0.0873 + 0.0248 * b + 0.01 * p, center = n * p + 0.5, squeeze = 0.92 - 4.2 / b;
        const double alpha = (2.83 + 5.1 / b) * spread;
        const double mode = log_binomial(floor((n + 1) * p), n, p);
        for (uint64_t number = 0;; ++number) {
            const Attempt attempt(key, number);
            const double u = attempt.u() - 0.5, v = attempt.v(), s = 0.5 - (u < 0 ? -u : u);
            k = floor((2.0 * a / s + b) * u + center);
            if (!(k >= 0 && k <= n)) continue;
            if (s >= 0.07 && v <= squeeze) break;
            if (log(v * alpha / (a / (s * s) + b)) <= log_binomial(k, n, p) - mode) break;
        }
    }
    return chance > 0.5 ? n - k : k;
}

}  // namespace
}  // namespace spmdx
