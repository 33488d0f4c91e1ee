// The kernels as the GPU has them: the same steps, functions and streams as on the CPU, a thread for each
// block of the generator or for each element. tests/kernels/test_nvrtc.py compiles them for every
// architecture.
#include "activation.h"
#include "continuous.h"
#include "jax.h"
#include "streams.h"

namespace spmdx {
namespace {

SPMDX_FN uint64_t thread_number() { return uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; }

// The four words that a step of D takes from block `number`: of Threefry, under the key or both of its split.
template <class D>
SPMDX_FN void lanes(Key key, uint64_t number, uint32_t* words) {
    using Take = Taking<D>;
    if (!key.threefry) {
        uint64_t first, second;
        philox(number, key, first, second);
        SPMDX_UNROLL for (int j = 0; j < 2; ++j) {
            words[j] = uint32_t(first >> 32 * j);
            words[2 + j] = uint32_t(second >> 32 * j);
        }
        return;
    }
    constexpr int each = Take::wide ? 2 : 1, step = each * Take::How::keys;
    SPMDX_UNROLL for (int k = 0; k < Take::How::keys; ++k) {
        const Key own = Take::How::keys == 1 ? key : fold_in(key, uint64_t(k));
        SPMDX_UNROLL for (int j = 0; j < 4 / step; ++j) {
            const uint64_t both = threefry(4 / step * number + uint64_t(j), own.k0, own.k1);
            uint32_t* const to = words + step * j + each * k;
            if (Take::wide) {
                to[0] = uint32_t(both);
                to[1] = uint32_t(both >> 32);
            } else {
                to[0] = uint32_t(both) ^ uint32_t(both >> 32);
            }
        }
    }
}

// Rows of `count` elements, one for each blockIdx.y: the first starts at the global index `first`, the next
// `row` later; in memory they lie one after another. Thread t has the t-th block of the generator that the
// row meets.
template <class D>
SPMDX_FN void fill_rows(const D& dist, Key key, uint64_t first, uint64_t count, uint64_t row,
                        typename D::Value* out) {
    constexpr int per_block = 4 / D::words * D::values;
    first += blockIdx.y * row;
    out += blockIdx.y * count;
    const uint64_t number = first / per_block + thread_number();
    if (number * per_block >= first + count) return;
    uint32_t words[4];
    typename D::Value values[per_block];
    lanes<D>(key, number, words);
    SPMDX_UNROLL for (int i = 0; i < 4 / D::words; ++i)
        dist.step(words + D::words * i, values + D::values * i);
    SPMDX_UNROLL for (int e = 0; e < per_block; ++e) {
        const uint64_t index = number * per_block + uint64_t(e);
        if (index >= first && index < first + count) out[index - first] = values[e];
    }
}

// The same rows for dropout: x and out alike.
template <class T, class Real>
SPMDX_FN void drop_rows(float kept, Real scale, Key key, uint64_t first, uint64_t count, uint64_t row,
                        const T* x, T* out) {
    first += blockIdx.y * row;
    x += blockIdx.y * count;
    out += blockIdx.y * count;
    const uint64_t number = first / 4 + thread_number();
    uint32_t words[4];
    lanes<Bernoulli>(key, number, words);
    SPMDX_UNROLL for (int e = 0; e < 4; ++e) {
        const uint64_t index = 4 * number + uint64_t(e);
        if (index >= first && index < first + count)
            out[index - first] = dropped(x[index - first], scale, unit(words[e]) < kept);
    }
}

}  // namespace
}  // namespace spmdx

using namespace spmdx;

#define SPMDX_FILL(name, ...)                                                                                \
    extern "C" __global__ void name(__VA_ARGS__ dist, Key key, uint64_t first, uint64_t count, uint64_t row, \
                                    typename __VA_ARGS__::Value* out) {                                      \
        fill_rows(dist, key, first, count, row, out);                                                        \
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
SPMDX_FILL(normal_c64, ComplexNormal<float>)
SPMDX_FILL(normal_c128, ComplexNormal<double>)
SPMDX_FILL(randint_u8, RandInt<uint8_t>)
SPMDX_FILL(randint_u16, RandInt<uint16_t>)
SPMDX_FILL(randint_u32, RandInt<uint32_t>)
SPMDX_FILL(randint_u64, RandInt<uint64_t>)
SPMDX_FILL(bernoulli, Bernoulli)
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
SPMDX_FILL(open_32, Open<float>)
SPMDX_FILL(open_64, Open<double>)

#define SPMDX_DROP(name, T, Real)                                                                    \
    extern "C" __global__ void name(float kept, Real scale, Key key, uint64_t first, uint64_t count, \
                                    uint64_t row, const T* x, T* out) {                              \
        drop_rows(kept, scale, key, first, count, row, x, out);                                      \
    }

SPMDX_DROP(drop_f16, Half, float)
SPMDX_DROP(drop_bf16, BFloat16, float)
SPMDX_DROP(drop_f32, float, float)
SPMDX_DROP(drop_f64, double, double)
SPMDX_DROP(drop_c64, Complex<float>, float)
SPMDX_DROP(drop_c128, Complex<double>, double)

// Element i of a function of arrays: `value` says of which.
#define SPMDX_MAP(name, T, value)                                                                   \
    extern "C" __global__ void name(const T* a, const T* b, const T* c, const T* d, uint64_t count, \
                                    T* out) {                                                       \
        const uint64_t i = thread_number();                                                         \
        if (i < count) out[i] = value;                                                              \
    }

SPMDX_MAP(exp_f32, float, spmdx::exp(a[i]))
SPMDX_MAP(exp_f64, double, spmdx::exp(a[i]))
SPMDX_MAP(log_f64, double, spmdx::log(a[i]))
SPMDX_MAP(log1p_f64, double, spmdx::log1p(a[i]))
SPMDX_MAP(truncated_f64, double, truncated(truncation(b[i], c[i]), a[i]))
SPMDX_MAP(between_f32, float, between(a[i], b[i], c[i], d[i]))
SPMDX_MAP(between_f64, double, between(a[i], b[i], c[i], d[i]))
SPMDX_MAP(gelu_f32, float, gelu(a[i]))
SPMDX_MAP(gelu_f64, double, gelu(a[i]))
SPMDX_MAP(gelu_back_f32, float, a[i] * gelu_slope(b[i]))
SPMDX_MAP(gelu_back_f64, double, a[i] * gelu_slope(b[i]))
SPMDX_MAP(silu_f32, float, silu(a[i]))
SPMDX_MAP(silu_f64, double, silu(a[i]))
SPMDX_MAP(silu_back_f32, float, a[i] * silu_slope(b[i]))
SPMDX_MAP(silu_back_f64, double, a[i] * silu_slope(b[i]))
SPMDX_MAP(swiglu_f32, float, silu(a[i]) * b[i])
SPMDX_MAP(swiglu_f64, double, silu(a[i]) * b[i])
SPMDX_MAP(multiply_high_u64, uint64_t, b[i] ? multiply_high(a[i], b[i]) : a[i])

// Element i of a distribution with streams: rows as above. `parent` is fold_in(key, element_streams).
#define SPMDX_STREAM(name, value)                                                             \
    extern "C" __global__ void name(Key parent, uint64_t first, uint64_t count, uint64_t row, \
                                    const double* a, const double* b, double* out) {          \
        const uint64_t j = thread_number(), i = blockIdx.y * count + j;                       \
        if (j >= count) return;                                                               \
        const Key own = fold_in(parent, first + blockIdx.y * row + j);                        \
        out[i] = value;                                                                       \
    }

SPMDX_STREAM(gamma_f64, gamma<false>(own, a[i]))
SPMDX_STREAM(log_gamma_f64, gamma<true>(own, a[i]))
SPMDX_STREAM(poisson_f64, poisson(own, a[i]))
SPMDX_STREAM(binomial_f64, binomial(own, a[i], b[i]))
