// Distributions that take a varying number of draws: each element has a stream of its own, fold_in(key, i) of
// its index i, so that an element does not depend on what others drew. All in float64.
//
// A rejection method takes one block of the stream an attempt, and comes in parts: `prepare`, what the
// parameters give; `quick`, a candidate and whether a cheap sufficient test takes it, without branches;
// `slow`, the exact test, after `complete`; `finish`, what a taken candidate becomes. An inversion takes
// block 0. A GPU's thread runs them in a loop (the functions at the end), the CPU in tiles of elements
// (attempts.h), with the same bits.
#pragma once

#include "random.h"
#include "special.h"

namespace spmdx {
namespace {

// A block of a stream, as two uniforms in (0, 1] of 53 bits and its four lanes.
struct Attempt {
    uint64_t first, second;
    static SPMDX_METHOD double uniform(uint64_t bits) { return fma(to_double(bits >> 11), 0x1p-53, 0x1p-54); }
    SPMDX_METHOD double u() const { return uniform(first); }
    SPMDX_METHOD double v() const { return uniform(second); }
};
SPMDX_FN Attempt attempt(Key key, uint64_t number) {
    Attempt made;
    block(key, number, made.first, made.second);
    return made;
}

constexpr uint64_t element_streams =
    (1ull << 63) + 1;                         // fold_in(key, this) is what elements fold their index into
constexpr uint64_t extra_block = 1ull << 63;  // far from the attempts

// Marsaglia and Tsang, "A simple method for generating gamma variables", 2000. A normal of 53 bits of radius
// and 32 of angle and a uniform of 32 bits make one attempt; the candidate is the normal. Of alpha < 1
// (`boosted`): the value for alpha + 1 times U**(1 / alpha), with U from the extra block. As logarithms if
// `logarithm`, which do not underflow.
template <bool logarithm, bool boosted>
struct Gamma {
    static constexpr bool extra = boosted;
    double alpha, d, c;
    static SPMDX_METHOD Gamma prepare(double alpha, double) {
        const double d = (boosted ? alpha + 1 : alpha) - 1.0 / 3;
        return {alpha, d, 1.0 / sqrt(9.0 * d)};
    }
    SPMDX_METHOD void complete() {}
    SPMDX_METHOD double errors(double) const { return 0; }
    static SPMDX_METHOD double uniform(const Attempt& drawn) {
        return fma(to_double(drawn.second >> 32), 0x1p-32, 0x1p-33);
    }
    SPMDX_METHOD bool quick(const Attempt& drawn, double& x) const {
        const double radius = sqrt(-2.0 * log(drawn.u()));
        x = radius * sincos_turn(uint64_t(uint32_t(drawn.second)) << 21).cos;
        const double square = x * x;
        return (fma(c, x, 1.0) > 0) & (uniform(drawn) < 1.0 - 0.0331 * (square * square));
    }
    SPMDX_METHOD bool slow(const Attempt& drawn, double x, double) const {
        const double t = fma(c, x, 1.0), v = t * t * t;
        return (t > 0) & (log(uniform(drawn)) < 0.5 * (x * x) + d * (1.0 - v + log(v)));
    }
    SPMDX_METHOD double finish(double x, const Attempt& more) const {
        const double t = fma(c, x, 1.0), value = d * (t * t * t);
        if constexpr (!boosted) return logarithm ? log(value) : value;
        const double boost = log(more.u()) / alpha;
        return logarithm ? log(value) + boost : value * exp(boost);
    }
};
// Of these alpha nothing is drawn: the value is fixed.
SPMDX_FN bool gamma_is_fixed(double alpha) {
    return !(alpha > 0) || alpha == bit_cast<double>(0x7FF0000000000000ull);
}
SPMDX_FN double fixed_gamma(double alpha, bool logarithm) {
    return logarithm && alpha == 0 ? bit_cast<double>(0xFFF0000000000000ull) : alpha;
}

// Hoermann, "The transformed rejection method for generating Poisson random variables", 1993, for a mean of
// 10 or more; with a squeeze. Whole numbers as float64.
struct PoissonRejection {
    static constexpr bool extra = false;
    double mean, a, b, squeeze;
    static SPMDX_METHOD PoissonRejection prepare(double mean, double) {
        const double b = 0.931 + 2.53 * sqrt(mean);
        return {mean, -0.059 + 0.02483 * b, b, 0.9277 - 3.6224 / (b - 2.0)};
    }
    SPMDX_METHOD void complete() {}
    SPMDX_METHOD double errors(double k) const { return k >= 0 ? stirling_error(k) : 0; }
    SPMDX_METHOD bool quick(const Attempt& drawn, double& k) const {
        const double u = drawn.u() - 0.5, s = 0.5 - size(u);
        k = floor((2.0 * a / s + b) * u + mean + 0.43);
        return (s >= 0.07) & (drawn.v() <= squeeze);
    }
    SPMDX_METHOD bool slow(const Attempt& drawn, double k, double errors) const {
        const double u = drawn.u() - 0.5, v = drawn.v(), s = 0.5 - size(u);
        const double inverse = 1.1239 + 1.1328 / (b - 3.4), height = log(v * inverse / (a / (s * s) + b));
        return (k >= 0) & (k < 0x1p62) & ((s >= 0.013) | (v <= s)) & (height <= log_poisson(k, mean, errors));
    }
    SPMDX_METHOD double finish(double k, const Attempt&) const { return k; }
};

// Hoermann, "The generation of binomial random variates", 1993, for a mean of 10 or more. n is a whole number
// below 2**53. Of p > 1/2: n less the value for 1 - p.
struct BinomialRejection {
    static constexpr bool extra = false;
    double n, p, spread, a, b, squeeze, mode;
    bool mirrored;
    static SPMDX_METHOD BinomialRejection prepare(double n, double chance) {
        const bool mirrored = chance > 0.5;
        const double p = pick(mirrored, 1.0 - chance, chance);
        const double spread = sqrt(n * p * (1.0 - p)), b = 1.15 + 2.53 * spread;
        return {n, p, spread, -0.0873 + 0.0248 * b + 0.01 * p, b, 0.92 - 4.2 / b, 0, mirrored};
    }
    SPMDX_METHOD double errors(double k) const { return k >= 0 && k <= n ? binomial_errors(k, n) : 0; }
    SPMDX_METHOD void complete() { mode = log_binomial(floor((n + 1) * p), n, p); }
    SPMDX_METHOD bool quick(const Attempt& drawn, double& k) const {
        const double u = drawn.u() - 0.5, s = 0.5 - size(u);
        k = floor((2.0 * a / s + b) * u + (n * p + 0.5));
        return (k >= 0) & (k <= n) & (s >= 0.07) & (drawn.v() <= squeeze);
    }
    SPMDX_METHOD bool slow(const Attempt& drawn, double k, double errors) const {
        const double u = drawn.u() - 0.5, v = drawn.v(), s = 0.5 - size(u);
        const double alpha = (2.83 + 5.1 / b) * spread, height = log(v * alpha / (a / (s * s) + b));
        return (k >= 0) & (k <= n) & (height <= log_binomial(k, n, p, errors) - mode);
    }
    SPMDX_METHOD double finish(double k, const Attempt&) const { return pick(mirrored, n - k, k); }
};

// Below a mean of 10: the least k at which the distribution function is u or more. The first probability, and
// what the k-th is to the one before.
constexpr int most_inverted = 200;
struct PoissonInversion {
    double mean;
    static SPMDX_METHOD PoissonInversion prepare(double mean, double) { return {mean}; }
    SPMDX_METHOD double first() const { return exp(-mean); }
    SPMDX_METHOD double ratio(double k) const { return mean / k; }
    SPMDX_METHOD double most() const { return most_inverted; }
    SPMDX_METHOD double finish(double k) const { return pick(mean > 0, k, 0.0); }
};
struct BinomialInversion {
    double n, p, odds;
    bool mirrored;
    static SPMDX_METHOD BinomialInversion prepare(double n, double chance) {
        const bool mirrored = chance > 0.5;
        const double p = pick(mirrored, 1.0 - chance, chance);
        return {n, p, p / (1.0 - p), mirrored};
    }
    SPMDX_METHOD double first() const { return exp(n * log1p(-p)); }
    SPMDX_METHOD double ratio(double k) const { return (n - (k - 1.0)) / k * odds; }
    SPMDX_METHOD double most() const { return n < most_inverted ? n : double(most_inverted); }
    SPMDX_METHOD double finish(double drawn) const {
        const double k = pick((n > 0) & (p > 0), drawn, 0.0);
        return pick(mirrored, n - k, k);
    }
};

// Which method.
SPMDX_FN bool poisson_inverts(double mean) { return !(mean >= 10); }
SPMDX_FN bool binomial_inverts(double n, double chance) {
    return !(n * (chance > 0.5 ? 1.0 - chance : chance) >= 10);
}

// One element alone.
template <class D>
SPMDX_FN double reject(D of, Key key) {
    of.complete();
    for (uint64_t number = 0;; ++number) {
        const Attempt drawn = attempt(key, number);
        double candidate;
        if (of.quick(drawn, candidate) || of.slow(drawn, candidate, of.errors(candidate)))
            return of.finish(candidate, D::extra ? attempt(key, extra_block) : drawn);
    }
}
template <class D>
SPMDX_FN double invert(const D& of, Key key) {
    double rest = attempt(key, 0).u(), p = of.first(), k = 0;
    while (rest > p && k < of.most()) {
        rest -= p;
        k += 1;
        p *= of.ratio(k);
    }
    return of.finish(k);
}
template <bool logarithm>
SPMDX_FN double gamma(Key key, double alpha) {
    if (gamma_is_fixed(alpha)) return fixed_gamma(alpha, logarithm);
    return alpha < 1 ? reject(Gamma<logarithm, true>::prepare(alpha, 0), key)
                     : reject(Gamma<logarithm, false>::prepare(alpha, 0), key);
}
SPMDX_FN double poisson(Key key, double mean) {
    return poisson_inverts(mean) ? invert(PoissonInversion::prepare(mean, 0), key)
                                 : reject(PoissonRejection::prepare(mean, 0), key);
}
SPMDX_FN double binomial(Key key, double n, double chance) {
    return binomial_inverts(n, chance) ? invert(BinomialInversion::prepare(n, chance), key)
                                       : reject(BinomialRejection::prepare(n, chance), key);
}

}  // namespace
}  // namespace spmdx
