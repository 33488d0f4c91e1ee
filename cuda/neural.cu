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

// The gradient of that, from what has come of it, y.
template <class T, int pack, int held>
SPMDX_FN void softmax_back(int64_t n, int64_t rows, bool logarithm, const T* y, const T* g, T* out) {
    using C = Computed<T>;
    over_rows(rows, [&](int64_t row) {
        Row<T, pack, held> made, slope;
        made.begin(y + row * n, n);
        slope.begin(g + row * n, n);
        C sum = 0;
        over<pack, held>(n, [&](int64_t i, int at) {
            made.need(i, at);
            slope.need(i, at);
            SPMDX_UNROLL for (int v = 0; v < pack; ++v) sum +=
                logarithm ? slope.value[at + v] : slope.value[at + v] * made.value[at + v];
        });
        sum = over_row<Add<C>>(sum);
        over<pack, held>(n, [&](int64_t i, int at) {
            made.need(i, at);
            slope.need(i, at);
            Pack<T, pack> result;
            SPMDX_UNROLL for (int v = 0; v < pack; ++v) {
                const C by = slope.value[at + v], of = made.value[at + v];
                result.v[v] =
                    narrow_to(logarithm ? log_softmax_slope(by, of, sum) : softmax_slope(by, of, sum), T());
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

// g (part exp(x - top) - even - share where i is the label): the gradient of cross-entropy.
template <class T, int pack, class C>
SPMDX_FN void cross_back(int64_t n, int64_t rows, C even, C share, const T* x, const C* tops, const C* parts,
                         const C* g, const int64_t* labels, T* out) {
    over_rows(rows, [&](int64_t row) {
        Row<T, pack, 0> in;
        in.begin(x + row * n, n);
        const C top = tops[row], part = parts[row], by = g[row];
        const int64_t label = labels[row];
        over<pack, 0>(n, [&](int64_t i, int at) {
            in.need(i, at);
            Pack<T, pack> result;
            SPMDX_UNROLL for (int v = 0; v < pack; ++v) {
                const C share_here = i + v == label ? even + share : even;
                result.v[v] = narrow_to(by * (spmdx::exp(in.value[at + v] - top) * part - share_here), T());
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
SPMDX_EACH(each_mix, mix(x, a, y, b))
SPMDX_EACH(each_mix_square, mix_square(x, a, y, b))
SPMDX_EACH(each_adam_step, adam_step(x, y, a, b, c))
SPMDX_EACH(each_adamw_step, adam_step(x, y, a, b, c) - z * d)

// Adam over many parameters in one launch, each with a share of the blocks: what training.h has in `adam`.
// The means and the step are of the type that is computed in.
struct AdamPart {
    const T* g;
    const C *m, *v;
    const T* p;  // null: it does not decay
    C *mean, *square, *step;
    uint64_t count, first, blocks;  // elements; the first of its blocks, and how many
};
struct AdamParts {
    static constexpr int most = 40;  // of 4 KiB, that arguments may have
    AdamPart of[most];
};
struct AdamNumbers {
    double kept, added, kept_square, added_square;
    Given rate, root, eps, decay;
};
extern "C" __global__ void adam_parts(int count, AdamParts parts, AdamNumbers numbers) {
    const C kept = C(numbers.kept), added = C(numbers.added), kept_square = C(numbers.kept_square),
            added_square = C(numbers.added_square), rate = numbers.rate.number(),
            root = numbers.root.number(), eps = numbers.eps.number(), decay = numbers.decay.number();
    int own = 0;
    while (own + 1 < count && parts.of[own + 1].first <= blockIdx.x) ++own;
    const AdamPart& of = parts.of[own];
    const auto step = [&](C g, C m, C v, C p, C& mean, C& square) {
        mean = mix(m, kept, g, added);
        square = mix_square(v, kept_square, g, added_square);
        const C taken = adam_step(mean, square, rate, root, eps);
        return of.p ? taken - p * decay : taken;
    };
    const uint64_t number = (blockIdx.x - of.first) * blockDim.x + threadIdx.x, all = of.blocks * blockDim.x;
    constexpr int pack = pack_of<C>;  // of the narrow ones, as many elements in 8 bytes
    constexpr int bytes = pack * int(sizeof(T));
    uint64_t done = 0;
    if (aligned<bytes>(of.g) && aligned<bytes>(of.p) && aligned<16>(of.m) && aligned<16>(of.v) &&
        aligned<16>(of.mean) && aligned<16>(of.square) && aligned<16>(of.step)) {
        done = of.count / pack * pack;
        for (uint64_t i = number * pack; i < done; i += all * pack) {
            const Pack<T, pack> g = load<pack>(of.g + i), p = of.p ? load<pack>(of.p + i) : g;
            const Pack<C, pack> m = load<pack>(of.m + i), v = load<pack>(of.v + i);
            Pack<C, pack> mean, square, taken;
            SPMDX_UNROLL for (int k = 0; k < pack; ++k) taken.v[k] =
                step(widen(g.v[k]), m.v[k], v.v[k], widen(p.v[k]), mean.v[k], square.v[k]);
            store<pack>(of.mean + i, mean);
            store<pack>(of.square + i, square);
            store<pack>(of.step + i, taken);
        }
    }
    for (uint64_t i = done + number; i < of.count; i += all)
        of.step[i] =
            step(widen(of.g[i]), of.m[i], of.v[i], widen(of.p ? of.p[i] : of.g[i]), of.mean[i], of.square[i]);
}

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
    }                                                                                                        \
    extern "C" __global__ void __launch_bounds__(512)                                                        \
        softmax_back_##way(int64_t n, int64_t rows, int logarithm, const T* y, const T* g, T* out) {         \
        softmax_back<T, pack, held>(n, rows, logarithm != 0, y, g, out);                                     \
    }
SPMDX_ROWS(held, pack_of<T>, 4)
SPMDX_ROWS(long, pack_of<T>, 0)
SPMDX_ROWS(any, 1, 0)

#define SPMDX_LOSS(way, pack)                                                                           \
    extern "C" __global__ void __launch_bounds__(512)                                                   \
        sum_exp_##way(int64_t n, int64_t rows, const T* x, const C* tops, C* out) {                     \
        sum_exp<T, pack>(n, rows, x, tops, out);                                                        \
    }                                                                                                   \
    extern "C" __global__ void __launch_bounds__(512)                                                   \
        cross_back_##way(int64_t n, int64_t rows, double even, double share, const T* x, const C* tops, \
                         const C* parts, const C* g, const int64_t* labels, T* out) {                   \
        cross_back<T, pack>(n, rows, C(even), C(share), x, tops, parts, g, labels, out);                \
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
