// The kernels as the GPU has them: the same steps, functions and streams as on the CPU, a thread for each
// block of the generator or for each element. tests/kernels/test_nvrtc.py compiles them for every
// architecture.
#include "places.h"
#include "streams.h"

namespace spmdx {
namespace {

template <class D>
SPMDX_FN void fill_places(const D& dist, Key key, const Place& place, typename D::Value* out) {
    using Value = typename D::Value;
    constexpr int per_block = 4 / D::words * D::values, bytes = per_block * int(sizeof(Value));
    each_number<per_block>(place, [&](uint64_t number, uint64_t first, uint64_t count, uint64_t at) {
        uint32_t words[4];
        Value values[per_block];
        lanes<D>(key, number, words);
        SPMDX_UNROLL for (int i = 0; i < 4 / D::words; ++i)
            dist.step(words + D::words * i, values + D::values * i);
        const uint64_t index = number * per_block;
        Value* const to = out + at + (index - first);  // may lie before the run, where nothing is written
        if constexpr (bytes <= 16 && per_block > 1) {
            if (index >= first && index + per_block <= first + count && aligned<bytes>(to)) {
                Pack<Value, per_block> pack;
                SPMDX_UNROLL for (int e = 0; e < per_block; ++e) pack.v[e] = values[e];
                return store<per_block>(to, pack);
            }
        }
        SPMDX_UNROLL for (int e = 0; e < per_block;
                          ++e) if (index + uint64_t(e) >= first && index + uint64_t(e) < first + count)
            to[e] = values[e];
    });
}

// The same places for dropout: x and out alike. The key's words are data of the device.
template <class T, class Real>
SPMDX_FN void drop_places(float kept, Real scale, Key key, const Place& place, const T* x, T* out) {
    each_number<4>(place, [&](uint64_t number, uint64_t first, uint64_t count, uint64_t at) {
        uint32_t words[4];
        lanes<Bernoulli>(key, number, words);
        const uint64_t index = 4 * number, shift = at - first;
        if (index >= first && index + 4 <= first + count && aligned<4 * sizeof(T)>(out + shift + index) &&
            aligned<4 * sizeof(T)>(x + shift + index)) {
            Pack<T, 4> pack = load<4>(x + shift + index);
            SPMDX_UNROLL for (int e = 0; e < 4; ++e) pack.v[e] =
                dropped(pack.v[e], scale, unit(words[e]) < kept);
            return store<4>(out + shift + index, pack);
        }
        SPMDX_UNROLL for (int e = 0; e < 4; ++e) {
            const uint64_t i = index + uint64_t(e);
            if (i >= first && i < first + count)
                out[shift + i] = dropped(x[shift + i], scale, unit(words[e]) < kept);
        }
    });
}

}  // namespace
}  // namespace spmdx

using namespace spmdx;

#define SPMDX_FILL(name, ...)                                                                       \
    extern "C" __global__ void name(__VA_ARGS__ dist, Key key, const uint64_t* replay, Place place, \
                                    typename __VA_ARGS__::Value* out) {                             \
        fill_places(dist, of_replay(key, replay), place, out);                                      \
    }

SPMDX_FILL(bits_u8, Bits<uint8_t>)
SPMDX_FILL(bits_u16, Bits<uint16_t>)
SPMDX_FILL(bits_u32, Bits<uint32_t>)
SPMDX_FILL(bits_u64, Bits<uint64_t>)
SPMDX_FILL(uniform_f16, Uniform<Half, float>)
SPMDX_FILL(uniform_bf16, Uniform<BFloat16, float>)
SPMDX_FILL(uniform_f32, Uniform<float, float>)
SPMDX_FILL(uniform_f64, Uniform<double, double>)
SPMDX_FILL(normal_f16, Normal<Half>)
SPMDX_FILL(normal_bf16, Normal<BFloat16>)
SPMDX_FILL(normal_f32, Normal<float>)
SPMDX_FILL(normal_f64, Normal<double>)
SPMDX_FILL(complex_normal_c64, ComplexNormal<float>)
SPMDX_FILL(complex_normal_c128, ComplexNormal<double>)
SPMDX_FILL(unit_f32, Uniform<float, float>)
SPMDX_FILL(randint_u8, RandInt<uint8_t>)
SPMDX_FILL(randint_u16, RandInt<uint16_t>)
SPMDX_FILL(randint_u32, RandInt<uint32_t>)
SPMDX_FILL(randint_u64, RandInt<uint64_t>)
SPMDX_FILL(bernoulli_u8, Bernoulli)
SPMDX_FILL(jax_bits_u8, JaxBits<uint8_t>)
SPMDX_FILL(jax_bits_u16, JaxBits<uint16_t>)
SPMDX_FILL(jax_bits_u32, JaxBits<uint32_t>)
SPMDX_FILL(jax_bits_u64, JaxBits<uint64_t>)
SPMDX_FILL(jax_uniform_f16, Uniform<Half, float, JaxUnit<Half>>)
SPMDX_FILL(jax_uniform_bf16, Uniform<BFloat16, float, JaxUnit<BFloat16>>)
SPMDX_FILL(jax_uniform_f32, Uniform<float, float, JaxUnit<float>>)
SPMDX_FILL(jax_uniform_f64, Uniform<double, double, JaxUnit<double>>)
SPMDX_FILL(jax_randint_u8, JaxRandInt<uint8_t, uint32_t, false>)
SPMDX_FILL(jax_randint_u16, JaxRandInt<uint16_t, uint32_t, false>)
SPMDX_FILL(jax_randint_u32, JaxRandInt<uint32_t, uint32_t, false>)
SPMDX_FILL(jax_randint_u64, JaxRandInt<uint64_t, uint64_t, false>)
SPMDX_FILL(jax_randint_all_u32, JaxRandInt<uint32_t, uint32_t, true>)
SPMDX_FILL(jax_randint_all_u64, JaxRandInt<uint64_t, uint64_t, true>)
SPMDX_FILL(exponential_f32, Inverse<Exponential, float>)
SPMDX_FILL(exponential_f64, Inverse<Exponential, double>)
SPMDX_FILL(gumbel_f32, Inverse<Gumbel, float>)
SPMDX_FILL(gumbel_f64, Inverse<Gumbel, double>)
SPMDX_FILL(rayleigh_f32, Inverse<Rayleigh, float>)
SPMDX_FILL(rayleigh_f64, Inverse<Rayleigh, double>)
SPMDX_FILL(laplace_f32, Inverse<Laplace, float>)
SPMDX_FILL(laplace_f64, Inverse<Laplace, double>)
SPMDX_FILL(logistic_f32, Inverse<Logistic, float>)
SPMDX_FILL(logistic_f64, Inverse<Logistic, double>)
SPMDX_FILL(cauchy_f32, Cauchy<float>)
SPMDX_FILL(cauchy_f64, Cauchy<double>)
SPMDX_FILL(truncated_normal_f32, TruncatedNormal<float>)
SPMDX_FILL(truncated_normal_f64, TruncatedNormal<double>)
SPMDX_FILL(open32_f64, Open<float>)
SPMDX_FILL(open64_f64, Open<double>)

#define SPMDX_DROP(name, T, Real)                                                                \
    extern "C" __global__ void name(float kept, Real scale, const uint32_t* words, int threefry, \
                                    const uint64_t* replay, Place place, const T* x, T* out) {   \
        drop_places(kept, scale, of_replay(key_in(words, threefry), replay), place, x, out);     \
    }

SPMDX_DROP(drop_f16, Half, float)
SPMDX_DROP(drop_bf16, BFloat16, float)
SPMDX_DROP(drop_f32, float, float)
SPMDX_DROP(drop_f64, double, double)
SPMDX_DROP(drop_c64, Complex<float>, float)
SPMDX_DROP(drop_c128, Complex<double>, double)

// Element i of a function of arrays: `value` says of which. An operand of one element has a step of 0.
#define SPMDX_MAP(name, T, value)                                                                            \
    extern "C" __global__ void map_##name(uint64_t count, T* out, const T* pa, uint64_t ia, const T* pb,     \
                                          uint64_t ib, const T* pc, uint64_t ic, const T* pd, uint64_t id) { \
        for (uint64_t i = thread_number(); i < count; i += thread_count()) {                                 \
            const T a = pa[i * ia], b = pb[i * ib], c = pc[i * ic], d = pd[i * id];                          \
            (void)b, (void)c, (void)d;                                                                       \
            out[i] = value;                                                                                  \
        }                                                                                                    \
    }

SPMDX_MAP(exp32, float, spmdx::exp(a))
SPMDX_MAP(exp64, double, spmdx::exp(a))
SPMDX_MAP(log64, double, spmdx::log(a))
SPMDX_MAP(log1p, double, spmdx::log1p(a))
SPMDX_MAP(ndtr, double, ndtr(a))
SPMDX_MAP(ndtri, double, ndtri(a))
SPMDX_MAP(truncated, double, truncated(truncation(b, c), a))
SPMDX_MAP(between32, float, between(a, b, c, d))
SPMDX_MAP(between64, double, between(a, b, c, d))
SPMDX_MAP(multiply_high, uint64_t, b ? multiply_high(a, b) : a)
SPMDX_MAP(log_poisson, double, log_poisson(a, b))
SPMDX_MAP(log_binomial, double, log_binomial(a, b, c))

// Element by element of a distribution with streams. `parent` is fold_in(key, element_streams).
#define SPMDX_STREAM(name, value)                                                                            \
    extern "C" __global__ void stream_##name(Key key, const uint64_t* replay, Place place, const double* pa, \
                                             uint64_t ia, const double* pb, uint64_t ib, double* out) {      \
        const Key parent = fold_in(of_replay(key, replay), element_streams);                                 \
        each_number<1>(place, [&](uint64_t index, uint64_t first, uint64_t, uint64_t at) {                   \
            const uint64_t i = at + (index - first);                                                         \
            const Key own = fold_in(parent, index);                                                          \
            const double a = pa[i * ia], b = pb[i * ib];                                                     \
            (void)b;                                                                                         \
            out[i] = value;                                                                                  \
        });                                                                                                  \
    }

SPMDX_STREAM(gamma, gamma<false>(own, a))
SPMDX_STREAM(log_gamma, gamma<true>(own, a))
SPMDX_STREAM(poisson, poisson(own, a))
SPMDX_STREAM(binomial, binomial(own, a, b))
