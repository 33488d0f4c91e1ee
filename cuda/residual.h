// What stands between two layers: dropout of what one gives, added to the stream of residuals, and the norm
// that the next begins with, in one pass over rows. On a CPU; residual.cu is the same on a GPU.
#pragma once

#include "dropout.h"
#include "neural.h"

namespace spmdx {

// The norm's x is the stream. With g in the norm, its out is the gradient with respect to the stream.
template <class T>
struct AddNorm {
    Norm<T> norm;
    const T *x, *added, *residual, *g;  // added: a vector for every row, or null; g: of the stream, or null
    T *stream, *to_x;                   // to_x: null where nothing is dropped
    const Drop* drop;                   // null: nothing is dropped
    const Layout* layout;
};

namespace {

// body(begin, end) for so many rows at a time that they stay in the cache.
template <class Body>
inline void in_tiles(int64_t n, uint64_t begin, uint64_t end, const Body& body) {
    constexpr uint64_t most = 1 << 13;  // elements
    const uint64_t rows = uint64_t(n) < most ? most / uint64_t(n) : 1;
    for (uint64_t row = begin; row < end; row += rows) body(row, row + rows < end ? row + rows : end);
}

template <class T>
inline void add_norm_rows(const AddNorm<T>& of, uint64_t begin, uint64_t end) {
    const int64_t n = of.norm.n;
    in_tiles(n, begin, end, [&](uint64_t first, uint64_t last) {
        const T* from = of.x;
        if (of.drop) {
            if (of.added) {
                add_to_rows(of.stream, of.x, of.added, n, first, last);
                from = of.stream;
            }
            drop_with<T, T>(*of.drop, *of.layout, from, first * uint64_t(n), last * uint64_t(n), of.stream);
            from = of.stream;
        }
        for (uint64_t row = first; row < last; ++row) {
            const uint64_t at = row * uint64_t(n);
            const T *const x = from + at, *const residual = of.residual + at, *const added = of.added;
            T* const stream = of.stream + at;
            if (added && !of.drop)
                SPMDX_FOR (int64_t i = 0; i < n; ++i) stream[i] = residual[i] + (x[i] + added[i]);
            else
                SPMDX_FOR (int64_t i = 0; i < n; ++i) stream[i] = residual[i] + x[i];
        }
        norm_rows(of.norm, first, last);
    });
}

// `to_scale`, `to_bias` and `to_added`: null, or where the sums over these rows go.
template <class T>
inline void add_norm_rows_back(const AddNorm<T>& of, T* to_scale, T* to_bias, T* to_added, uint64_t begin,
                               uint64_t end) {
    const int64_t n = of.norm.n;
    T* const out = of.norm.out;
    const T* const to_x = of.drop ? of.to_x : out;
    in_tiles(n, begin, end, [&](uint64_t first, uint64_t last) {
        for (uint64_t row = first; row < last; ++row) {
            const uint64_t at = row * uint64_t(n);
            norm_row_back(of.norm, to_scale, to_bias, row, row == begin);
            if (of.g)
                SPMDX_FOR (int64_t i = 0; i < n; ++i) out[at + uint64_t(i)] += of.g[at + uint64_t(i)];
        }
        if (of.drop)
            drop_with<T, T>(*of.drop, *of.layout, out, first * uint64_t(n), last * uint64_t(n), of.to_x);
        if (to_added)
            for (uint64_t row = first; row < last; ++row)
                add_row(to_added, to_x + row * uint64_t(n), n, row == begin);
    });
}

}  // namespace
}  // namespace spmdx
