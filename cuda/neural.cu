// Activations, norms, softmax, cross-entropy and rotations as the GPU has them: the functions of an element
// are those of the CPU, the order of a row's sums is not.
#include "activation.h"
#include "norm.h"

namespace spmdx {
namespace {

// Elementwise, of one to three operands, 16 bytes at a time where all lie so.
template <class T, class F>
SPMDX_FN void each(uint64_t n, T* out, const T* x, const T* y, const T* z, const F& f) {
    constexpr int pack = pack_of<T>;
    uint64_t done = 0;
    if (aligned<16>(out) && aligned<16>(x) && aligned<16>(y) && aligned<16>(z)) {
        done = n / pack * pack;
        for (uint64_t i = thread_number() * pack; i < done; i += thread_count() * pack) {
            const Pack<T, pack> a = load<pack>(x + i), b = load<pack>(y + i), c = load<pack>(z + i);
            Pack<T, pack> result;
            SPMDX_UNROLL for (int v = 0; v < pack; ++v) result.v[v] =
                narrow_to(f(widen(a.v[v]), widen(b.v[v]), widen(c.v[v])), T());
            store<pack>(out + i, result);
        }
    }
    for (uint64_t i = done + thread_number(); i < n; i += thread_count())
        out[i] = narrow_to(f(widen(x[i]), widen(y[i]), widen(z[i])), T());
}

// Elementwise, of g, x and a bias that every row of `period` elements has added. No g: null.
template <class T, class F>
SPMDX_FN void each_biased(uint64_t n, uint64_t period, T* out, const T* g, const T* x, const T* bias,
                          const F& f) {
    using C = Computed<T>;
    constexpr int pack = pack_of<T>;
    uint64_t done = 0;
    if (period % pack == 0 && aligned<16>(out) && aligned<16>(x) && aligned<16>(bias) &&
        (!g || aligned<16>(g))) {
        done = n;
        for (uint64_t i = thread_number() * pack; i < n; i += thread_count() * pack) {
            const Pack<T, pack> a = load<pack>(x + i), b = load<pack>(bias + i % period);
            const Pack<T, pack> by = g ? load<pack>(g + i) : a;
            Pack<T, pack> result;
            SPMDX_UNROLL for (int v = 0; v < pack; ++v) result.v[v] =
                narrow_to(f(widen(by.v[v]), C(widen(a.v[v]) + widen(b.v[v]))), T());
            store<pack>(out + i, result);
        }
    }
    for (uint64_t i = done + thread_number(); i < n; i += thread_count())
        out[i] = narrow_to(f(widen(g ? g[i] : x[i]), C(widen(x[i]) + widen(bias[i % period]))), T());
}

// Softmax of rows, or its logarithm.
template <class T, int pack, int held>
SPMDX_FN void softmax(int64_t n, int64_t rows, bool logarithm, const T* x, T* out) {
    using C = Computed<T>;
    over_rows(rows, [&](int64_t row) {
        Row<T, pack, held> in;
        in.begin(x + row * n, n);
        C top = Greatest<C>::zero(), sum = 0;
        over<pack, held>(n, [&](int64_t i, int at) {
            in.need(i, at);
            SPMDX_UNROLL for (int v = 0; v < pack; ++v) top = Greatest<C>::of(top, in.value[at + v]);
        });
        top = over_row<Greatest<C>>(top);
        over<pack, held>(n, [&](int64_t i, int at) {
            in.need(i, at);
            SPMDX_UNROLL for (int v = 0; v < pack; ++v) {
                const C low = in.value[at + v] - top, power = spmdx::exp(low);
                sum += power;
                if (held) in.value[at + v] = logarithm ? low : power;
            }
        });
        sum = over_row<Add<C>>(sum);
        const C by = logarithm && sum == sum ? spmdx::log(sum) : sum;  // log knows no NaN
        over<pack, held>(n, [&](int64_t i, int at) {
            in.need(i, at);
            Pack<T, pack> result;
            SPMDX_UNROLL for (int v = 0; v < pack; ++v) {
                C value = in.value[at + v];
                if (held == 0) value = logarithm ? value - top : spmdx::exp(value - top);
                result.v[v] = narrow_to(logarithm ? value - by : value / by, T());
            }
            store<pack>(out + row * n + i, result);
        });
    });
}

// The sum of exp(x - top) of every row.
template <class T, int pack>
SPMDX_FN void sum_exp(int64_t n, int64_t rows, const T* x, const Computed<T>* tops, Computed<T>* out) {
    using C = Computed<T>;
    over_rows(rows, [&](int64_t row) {
        Row<T, pack, 0> in;
        in.begin(x + row * n, n);
        const C top = tops[row];
        C sum = 0;
        over<pack, 0>(n, [&](int64_t i, int at) {
            in.need(i, at);
            SPMDX_UNROLL for (int v = 0; v < pack; ++v) sum += spmdx::exp(in.value[at + v] - top);
        });
        sum = over_row<Add<C>>(sum);
        if (threadIdx.x == 0) out[row] = sum;
    });
}

// g (exp(x - total) - even - share where i is the label): the gradient of cross-entropy.
template <class T, int pack, class C>
SPMDX_FN void cross_back(int64_t n, int64_t rows, C even, C share, const T* x, const C* totals, const C* g,
                         const int64_t* labels, T* out) {
    over_rows(rows, [&](int64_t row) {
        Row<T, pack, 0> in;
        in.begin(x + row * n, n);
        const C total = totals[row], by = g[row];
        const int64_t label = labels[row];
        over<pack, 0>(n, [&](int64_t i, int at) {
            in.need(i, at);
            Pack<T, pack> result;
            SPMDX_UNROLL for (int v = 0; v < pack; ++v) {
                const C share_here = i + v == label ? even + share : even;
                result.v[v] = narrow_to(by * (spmdx::exp(in.value[at + v] - total) - share_here), T());
            }
            store<pack>(out + row * n + i, result);
        });
    });
}

// Pairs of elements turned by angles: x [.., t, heads, 2 half], cos and sin [angles, half], of which row t
// modulo `angles` belongs to it.
template <class T>
SPMDX_FN void rotate(uint64_t pairs, int64_t heads, int64_t half, int64_t angles, bool neighbours, const T* x,
                     const Computed<T>* cos, const Computed<T>* sin, T* out) {
    using C = Computed<T>;
    for (uint64_t i = thread_number(); i < pairs; i += thread_count()) {
        const uint64_t row = i / uint64_t(half), j = i - row * uint64_t(half), t = row / uint64_t(heads);
        const uint64_t angle = t % uint64_t(angles) * uint64_t(half) + j, at = row * 2 * uint64_t(half);
        const uint64_t first = at + (neighbours ? 2 * j : j),
                       second = neighbours ? first + 1 : first + uint64_t(half);
        const C a = widen(x[first]), b = widen(x[second]), c = cos[angle], s = sin[angle];
        out[first] = narrow_to(a * c - b * s, T());
        out[second] = narrow_to(b * c + a * s, T());
    }
}

}  // namespace
}  // namespace spmdx

using namespace spmdx;

// For the type that the compiler is told, SPMDX_TYPE.
using T = SPMDX_TYPE;
using C = Computed<T>;

// Numbers that some activations take: by value, or where they lie on the device.
struct Given {
    double value;
    const double* data;
    SPMDX_METHOD C number() const { return C(data ? *data : value); }
};
#define SPMDX_EACH(name, value)                                                                          \
    extern "C" __global__ void name(uint64_t n, T* out, const T* px, const T* py, const T* pz, Given na, \
                                    Given nb, Given nc, Given nd) {                                      \
        const C a = na.number(), b = nb.number(), c = nc.number(), d = nd.number();                      \
        (void)a, (void)b, (void)c, (void)d;                                                              \
        each(n, out, px, py, pz, [=](C x, C y, C z) {                                                    \
            (void)y, (void)z;                                                                            \
            return value;                                                                                \
        });                                                                                              \
    }
SPMDX_EACH(each_gelu, gelu(x))
SPMDX_EACH(each_gelu_back, x* gelu_slope(y))
SPMDX_EACH(each_gelu_erf, gelu_erf(x))
SPMDX_EACH(each_gelu_erf_back, x* gelu_erf_slope(y))
SPMDX_EACH(each_silu, silu(x))
SPMDX_EACH(each_silu_back, x* silu_slope(y))
SPMDX_EACH(each_swiglu, silu(x) * y)
SPMDX_EACH(each_mix, x* a + y * b)
SPMDX_EACH(each_mix_square, y * y * b + x * a)
SPMDX_EACH(each_adam_step, x / (spmdx::sqrt(y) / b + c) * -a)
SPMDX_EACH(each_adamw_step, x / (spmdx::sqrt(y) / b + c) * -a - z * d)

extern "C" __global__ void bias_gelu(uint64_t n, uint64_t period, T* out, const T* x, const T* bias) {
    each_biased<T>(n, period, out, nullptr, x, bias, [](C, C y) { return gelu(y); });
}
extern "C" __global__ void bias_gelu_back(uint64_t n, uint64_t period, T* out, const T* x, const T* bias,
                                          const T* g) {
    each_biased<T>(n, period, out, g, x, bias, [](C by, C y) { return by * gelu_slope(y); });
}

// In three ways: packs in registers, packs read again, and elements one by one (of rows that are not whole
// packs).
#define SPMDX_ROWS(way, pack, held)                                                                          \
    extern "C" __global__ void __launch_bounds__(512)                                                        \
        norm_##way(int64_t n, int64_t rows, double eps, int centered, const T* x, const T* scale,            \
                   const T* bias, T* out) {                                                                  \
        over_rows(rows, [&](int64_t row) {                                                                   \
            Row<T, pack, held> in;                                                                           \
            in.begin(x + row * n, n);                                                                        \
            norm_row(in, n, C(eps), centered != 0, scale, bias, out + row * n);                              \
        });                                                                                                  \
    }                                                                                                        \
    extern "C" __global__ void __launch_bounds__(512) norm_back_##way(                                       \
        int64_t n, int64_t rows, double eps, int centered, const T* x, const T* scale, const T* g, T* out) { \
        over_rows(rows, [&](int64_t row) {                                                                   \
            norm_row_back<T, pack, held>(                                                                    \
                x + row * n, g + row * n, n, C(eps), centered != 0, scale,                                   \
                [&](int64_t i, int, const Pack<T, pack>& to) { store<pack>(out + row * n + i, to); });       \
        });                                                                                                  \
    }                                                                                                        \
    extern "C" __global__ void __launch_bounds__(512)                                                        \
        softmax_##way(int64_t n, int64_t rows, int logarithm, const T* x, T* out) {                          \
        softmax<T, pack, held>(n, rows, logarithm != 0, x, out);                                             \
    }
SPMDX_ROWS(held, pack_of<T>, 4)
SPMDX_ROWS(long, pack_of<T>, 0)
SPMDX_ROWS(any, 1, 0)

#define SPMDX_LOSS(way, pack)                                                                             \
    extern "C" __global__ void __launch_bounds__(512)                                                     \
        sum_exp_##way(int64_t n, int64_t rows, const T* x, const C* tops, C* out) {                       \
        sum_exp<T, pack>(n, rows, x, tops, out);                                                          \
    }                                                                                                     \
    extern "C" __global__ void __launch_bounds__(512)                                                     \
        cross_back_##way(int64_t n, int64_t rows, double even, double share, const T* x, const C* totals, \
                         const C* g, const int64_t* labels, T* out) {                                     \
        cross_back<T, pack>(n, rows, C(even), C(share), x, totals, g, labels, out);                       \
    }
SPMDX_LOSS(long, pack_of<T>)
SPMDX_LOSS(any, 1)

// With respect to scale: g y added up over rows (g alone where `moments` is null). First every row's moments;
// then, of each chunk of rows, a sum for every column; then these sums, in order.
extern "C" __global__ void __launch_bounds__(512)
    norm_moments(int64_t n, int64_t rows, double eps, int centered, const T* x, C* out) {
    over_rows(rows, [&](int64_t row) {
        Row<T, 1, 0> in;
        in.begin(x + row * n, n);
        const Moments<C> m = moments<1, 0>(in, n, C(eps), centered != 0);
        if (threadIdx.x == 0) out[2 * row] = m.mean, out[2 * row + 1] = m.root;
    });
}
extern "C" __global__ void norm_scale_back(int64_t n, int64_t rows, int64_t chunk, const T* x, const T* g,
                                           const C* moments, C* parts) {
    __shared__ C sums[8][33];
    const int64_t column = int64_t(blockIdx.x) * 32 + threadIdx.x, first = int64_t(blockIdx.y) * chunk;
    const int64_t last = first + chunk < rows ? first + chunk : rows;
    C sum = 0;
    for (int64_t row = first + threadIdx.y; column < n && row < last; row += blockDim.y)
        sum += widen(g[row * n + column]) *
               (moments ? (widen(x[row * n + column]) - moments[2 * row]) * moments[2 * row + 1] : C(1));
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || column >= n) return;
    for (int k = 1; k < int(blockDim.y); ++k) sum += sums[k][threadIdx.x];
    parts[int64_t(blockIdx.y) * n + column] = sum;
}
extern "C" __global__ void norm_sum_parts(int64_t n, int64_t count, const C* parts, T* out) {
    for (int64_t i = int64_t(thread_number()); i < n; i += int64_t(thread_count())) {
        C sum = 0;
        for (int64_t k = 0; k < count; ++k) sum += parts[k * n + i];
        out[i] = narrow_to(sum, T());
    }
}

extern "C" __global__ void rotate_pairs(uint64_t pairs, int64_t heads, int64_t half, int64_t angles,
                                        int neighbours, const T* x, const C* cos, const C* sin, T* out) {
    rotate<T>(pairs, heads, half, angles, neighbours != 0, x, cos, sin, out);
}
