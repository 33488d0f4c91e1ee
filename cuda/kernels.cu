// The kernels as the GPU has them: the same steps, functions and streams as on the CPU, a thread for each
// block of the generator or for each element. tests/kernels/test_nvrtc.py compiles them for every
// architecture.
#include "activation.h"
#include "continuous.h"
#include "streams.h"

namespace spmdx {
namespace {

SPMDX_FN uint64_t thread_number() { return uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; }

// The four lanes of block `number`, as elements of the given width see them.
SPMDX_FN void lanes(Key key, uint64_t number, bool wide, uint32_t* words) {
    uint64_t both[4];
    if (key.threefry && !wide) {
        SPMDX_UNROLL for (int j = 0; j < 4; ++j) {
            both[j] = threefry(4 * number + uint64_t(j), key.k0, key.k1);
            words[j] = uint32_t(both[j] >> 32) ^ uint32_t(both[j]);
        }
        return;
    }
    block(key, number, both[0], both[1]);
    SPMDX_UNROLL for (int j = 0; j < 2; ++j) {
        words[2 * j] = uint32_t(both[j]);
        words[2 * j + 1] = uint32_t(both[j] >> 32);
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
    lanes(key, number, D::words / D::values != 1, words);
    SPMDX_UNROLL for (int i = 0; i < 4 / D::words; ++i)
        dist.step(words + D::words * i, values + D::values * i);
    SPMDX_UNROLL for (int e = 0; e < per_block; ++e) {
        const uint64_t index = number * per_block + uint64_t(e);
        if (index >= first && index < first + count) out[index - first] = values[e];
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

SPMDX_STREAM(gamma_f64, gamma(own, a[i], false))
SPMDX_STREAM(log_gamma_f64, gamma(own, a[i], true))
SPMDX_STREAM(poisson_f64, poisson(own, a[i]))
SPMDX_STREAM(binomial_f64, binomial(own, a[i], b[i]))
