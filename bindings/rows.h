// Rows and sums over them: what arrays must be, and how the work is split over threads.
#pragma once

#include <algorithm>
#include <array>
#include <memory>

#include "bindings/operands.h"
#include "bindings/parallel.h"

namespace spmdx {

inline uint64_t grain(int64_t n) {
    return uint64_t(std::max<int64_t>(1, (1 << 15) / std::max<int64_t>(1, n)));
}

// A number for each row, and for each column.
struct Size {
    uint64_t rows;
    int64_t n;
};
inline Size size_of(const py::array& x) {
    need(x.ndim() > 0, "x has no rows");
    const int64_t n = x.shape(x.ndim() - 1);
    return {n ? uint64_t(x.size() / n) : 0, n};
}

// body(begin, end, to) for chunks of rows, on threads, where `to` are places for their sums; which become
// `sums`, each null or n elements.
template <class T, size_t count, class Body>
void in_chunks(Size size, const std::array<T*, count>& sums, const Body& body) {
    const uint64_t chunks = (size.rows + chunk_rows - 1) / chunk_rows, n = uint64_t(size.n);
    std::array<std::unique_ptr<T[]>, count> parts;
    for (size_t k = 0; k < count; ++k)
        if (sums[k] && chunks > 1) parts[k].reset(new T[chunks * n]);
    parallel(chunks, std::max<uint64_t>(1, grain(size.n) / chunk_rows), [&](uint64_t first, uint64_t last) {
        for (uint64_t i = first; i < last; ++i) {
            std::array<T*, count> to = sums;
            for (size_t k = 0; k < count; ++k)
                if (parts[k]) to[k] = parts[k].get() + i * n;
            body(i * chunk_rows, std::min(size.rows, (i + 1) * chunk_rows), to);
        }
    });
    for (size_t k = 0; k < count; ++k) {
        if (parts[k]) neural<T>().sum_rows(sums[k], parts[k].get(), size.n, 0, chunks);
        if (sums[k] && !chunks) std::fill(sums[k], sums[k] + n, T(0));
    }
}

template <class T>
Norm<T> norm_of(const py::array& x, const Maybe& scale, const Maybe& bias, const Maybe& g, double eps,
                bool centered, T* out) {
    return {size_of(x).n,      T(eps),           centered,      data_of<T>(x),
            data_of<T>(scale), data_of<T>(bias), data_of<T>(g), out};
}

// Everything contiguous and of one dtype; x, g and out of one size, and the vectors as long as rows. True for
// float64.
inline bool check_rows(const py::array& x, std::initializer_list<const Maybe*> whole,
                       std::initializer_list<const Maybe*> vectors) {
    const Size size = size_of(x);
    Arrays all{x};
    for (const Maybe* each : whole) {
        if (!*each) continue;
        need((*each)->size() == x.size(), "an array has another size");
        all.push_back(**each);
    }
    for (const Maybe* each : vectors) {
        if (!*each) continue;
        need((*each)->size() == size.n, "a vector has another length");
        all.push_back(**each);
    }
    for (const py::array& each : all) need(is_contiguous(each), "expected C-contiguous arrays");
    return is_wide(x, all);
}

}  // namespace spmdx
