// Functions of arrays, element by element, for distributions with parameters of each element, and for tests.
#pragma once

#include "attempts.h"
#include "continuous.h"

namespace spmdx {

// What is computed of one to three operands a, b, c, and from what to what.
enum class Function {
    exp32,
    exp64,
    log64,
    log1p,
    ndtr,
    ndtri,
    between32,
    between64,      // the uniform a of [0, 1) stretched: b + a c, at most d
    truncated,      // the normal at the uniform a, confined to [b, c]
    multiply_high,  // the high word of a b; where b is 0, a
    log_poisson,
    log_binomial
};

namespace {

template <class T, class F>
inline void map_with(void* out, const Operand* in, uint64_t begin, uint64_t end, const F& f) {
    T* const result = static_cast<T*>(out);
    const T *const a = static_cast<const T*>(in[0].data), *const b = static_cast<const T*>(in[1].data);
    const T *const c = static_cast<const T*>(in[2].data), *const d = static_cast<const T*>(in[3].data);
    const uint64_t i0 = in[0].stride, i1 = in[1].stride, i2 = in[2].stride, i3 = in[3].stride;
    SPMDX_FOR (uint64_t i = begin; i < end; ++i) result[i] = f(a[i * i0], b[i * i1], c[i * i2], d[i * i3]);
}

inline void map(Function function, void* out, const Operand* in, uint64_t begin, uint64_t end) {
    const auto floats = [&](auto f) { map_with<float>(out, in, begin, end, f); };
    const auto doubles = [&](auto f) { map_with<double>(out, in, begin, end, f); };
    switch (function) {
        case Function::exp32: return floats([](float a, float, float, float) { return exp(a); });
        case Function::exp64: return doubles([](double a, double, double, double) { return exp(a); });
        case Function::log64: return doubles([](double a, double, double, double) { return log(a); });
        case Function::log1p: return doubles([](double a, double, double, double) { return log1p(a); });
        case Function::ndtr: return doubles([](double a, double, double, double) { return ndtr(a); });
        case Function::ndtri: return doubles([](double a, double, double, double) { return ndtri(a); });
        case Function::between32:
            return floats(
                [](float u, float low, float span, float last) { return between(u, low, span, last); });
        case Function::between64:
            return doubles(
                [](double u, double low, double span, double last) { return between(u, low, span, last); });
        case Function::truncated:
            return doubles([](double u, double low, double high, double) {
                return truncated(truncation(low, high), u);
            });
        case Function::multiply_high:
            return map_with<uint64_t>(out, in, begin, end, [](uint64_t x, uint64_t span, uint64_t, uint64_t) {
                return span ? spmdx::multiply_high(x, span) : x;
            });
        case Function::log_poisson:
            return doubles([](double k, double mean, double, double) { return log_poisson(k, mean); });
        case Function::log_binomial:
            return doubles([](double k, double n, double p, double) { return log_binomial(k, n, p); });
    }
}

}  // namespace
}  // namespace spmdx
