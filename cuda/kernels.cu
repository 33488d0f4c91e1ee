// The kernels as the GPU has them: the same steps, functions and streams as on the CPU, a thread for each
// block of the generator or for each element. tests/kernels/test_nvrtc.py compiles them for every
// architecture.
#include "continuous.h"
#include "gpu.h"
#include "jax.h"
#include "streams.h"

namespace spmdx {
namespace {

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

// Where a block's elements lie in the global array. Without a table: one run of `count` from `first` on. With
// one, rows of runs: the table's first numbers are how many dimensions stand before the innermost, how many
// runs there are along that, how many rows, and the elements of a row; then, for each such dimension, its
// length in the block, the elements from one index to the next, how many pieces it has, and where in the
// table these are (start and stop); then, for each run, where it starts along the innermost dimension, how
// long it is, and where in the row it stands.
struct Place {
    const uint64_t* table;
    uint64_t first, count;
};

// Calls f(number, first, count, at) for every number n of `per_block` elements that some run meets: of this
// run the first global index, the length, and where in the block it begins.
template <int per_block, class F>
SPMDX_FN void each_number(const Place& place, const F& f) {
    const auto along = [&](uint64_t first, uint64_t count, uint64_t at) {
        const uint64_t last = (first + count - 1) / per_block;
        for (uint64_t number = first / per_block + thread_number(); number <= last; number += thread_count())
            f(number, first, count, at);
    };
    const uint64_t* const table = place.table;
    if (!table) return along(place.first, place.count, 0);
    const int outer = int(table[0]), runs = int(table[1]);
    const uint64_t rows = table[2], length = table[3];
    for (uint64_t row = uint64_t(blockIdx.y) * blockDim.y + threadIdx.y; row < rows;
         row += uint64_t(gridDim.y) * blockDim.y) {
        uint64_t base = 0, rest = row;
        for (int d = outer - 1; d >= 0; --d) {
            const uint64_t* const dim = table + 4 + 4 * d;
            uint64_t local = rest % dim[0];
            rest /= dim[0];
            const uint64_t* piece = table + dim[3];
            for (; local >= piece[1] - piece[0]; piece += 2) local -= piece[1] - piece[0];
            base += (piece[0] + local) * dim[1];
        }
        const uint64_t* run = table + 4 + 4 * outer;
        for (int r = 0; r < runs; ++r, run += 3) along(base + run[0], run[1], row * length + run[2]);
    }
}

// In a graph, the key of a replay: the number of the replay folded into the key.
SPMDX_FN Key of_replay(Key key, const uint64_t* replay) { return replay ? fold_in(key, *replay) : key; }

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

SPMDX_FN Key key_in(const uint32_t* words, int threefry) {
    return {words[0], words[1], threefry ? 0 : words[2], threefry ? 0 : words[3], threefry != 0};
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
