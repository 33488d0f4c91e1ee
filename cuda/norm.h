// Norms of rows as a GPU has them, and their slopes. The order of a row's sums is not the CPU's.
#pragma once

#include "gpu.h"

namespace spmdx {
namespace {

// What a row is shifted and multiplied by so that its mean is 0 (if centered) and its mean square 1.
template <class C>
struct Moments {
    C mean, root;
};
template <int pack, int held, class R, class C>
SPMDX_FN Moments<C> moments(R& x, int64_t n, C eps, bool centered) {
    C sum = 0, square = 0;
    if (centered) {
        over<pack, held>(n, [&](int64_t i, int at) {
            x.need(i, at);
            SPMDX_UNROLL for (int v = 0; v < pack; ++v) sum += x.value[at + v];
        });
        sum = over_row<Add<C>>(sum) / C(n);
    }
    over<pack, held>(n, [&](int64_t i, int at) {
        x.need(i, at);
        SPMDX_UNROLL for (int v = 0; v < pack; ++v) square +=
            (x.value[at + v] - sum) * (x.value[at + v] - sum);
    });
    return {sum, 1 / sqrt(over_row<Add<C>>(square) / C(n) + eps)};
}

// A row that has begun, into `out`.
template <class T, int pack, int held, class C>
SPMDX_FN void norm_row(Row<T, pack, held>& in, int64_t n, C eps, bool centered, const T* scale, const T* bias,
                       T* out) {
    const Moments<C> m = moments<pack, held>(in, n, eps, centered);
    over<pack, held>(n, [&](int64_t i, int at) {
        in.need(i, at);
        Pack<T, pack> result, by, more;
        if (scale) by = load<pack>(scale + i);
        if (bias) more = load<pack>(bias + i);
        SPMDX_UNROLL for (int v = 0; v < pack; ++v) {
            C y = (in.value[at + v] - m.mean) * m.root;
            if (scale) y *= widen(by.v[v]);
            if (bias) y += widen(more.v[v]);
            result.v[v] = narrow_to(y, T());
        }
        store<pack>(out + i, result);
    });
}

// With respect to x, of a row and its g: root (d - y mean(d y) - mean(d)), where d = g scale and y is the row
// brought to 0 and 1. Calls put(first element, register, pack) with what comes.
template <class T, int pack, int held, class C, class F>
SPMDX_FN Moments<C> norm_row_back(const T* x, const T* g, int64_t n, C eps, bool centered, const T* scale,
                                  const F& put) {
    Row<T, pack, held> in, slope;
    in.begin(x, n);
    slope.begin(g, n);
    const Moments<C> m = moments<pack, held>(in, n, eps, centered);
    const auto scaled = [&](int64_t i, int at) {
        slope.need(i, at);
        if (!scale) return;
        const Pack<T, pack> by = load<pack>(scale + i);
        SPMDX_UNROLL for (int v = 0; v < pack; ++v) slope.value[at + v] *= widen(by.v[v]);
    };
    C along = 0, level = 0;
    over<pack, held>(n, [&](int64_t i, int at) {
        in.need(i, at);
        scaled(i, at);
        SPMDX_UNROLL for (int v = 0; v < pack; ++v) {
            along += slope.value[at + v] * (in.value[at + v] - m.mean);
            level += slope.value[at + v];
        }
    });
    along = over_row<Add<C>>(along) * m.root / C(n);
    level = centered ? over_row<Add<C>>(level) / C(n) : C(0);
    over<pack, held>(n, [&](int64_t i, int at) {
        in.need(i, at);
        if (held == 0) scaled(i, at);
        Pack<T, pack> result;
        SPMDX_UNROLL for (int v = 0; v < pack; ++v) result.v[v] = narrow_to(
            (slope.value[at + v] - (in.value[at + v] - m.mean) * m.root * along - level) * m.root, T());
        put(i, at, result);
    });
    return m;
}

}  // namespace
}  // namespace spmdx
