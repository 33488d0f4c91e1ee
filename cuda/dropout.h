// Dropout: the mask drawn, and applied with the scale while it is in the cache.
#pragma once

#include "fill.h"

namespace spmdx {

struct Drop {
    Type type;
    Key key;
    float kept;    // the chance to be kept
    double scale;  // of what is kept, a value of the type that products are made in
};

namespace {

template <class T, class Real>
void drop_with(const Drop& drop, const Layout& layout, const void* x, uint64_t begin, uint64_t end,
               void* out) {
    constexpr uint64_t most = 1 << 13;
    uint8_t mask[most];
    const T* const in = static_cast<const T*>(x);
    T* const result = static_cast<T*>(out);
    const Real scale = Real(drop.scale);
    for (uint64_t from = begin; from < end;) {
        const uint64_t count = end - from < most ? end - from : most;
        // Positions in the block count from its start, and so does what is filled.
        fill_with(Bernoulli{drop.kept}, drop.key, layout, from, from + count, mask - from);
        SPMDX_FOR (uint64_t j = 0; j < count; ++j) result[from + j] = dropped(in[from + j], scale, mask[j]);
        from += count;
    }
}

// Elements [begin, end) of a block: those of x that are kept, scaled, and 0 for the others.
inline void drop(const Drop& drop, const Layout& layout, const void* x, uint64_t begin, uint64_t end,
                 void* out) {
    switch (drop.type) {
        case Type::f16: return drop_with<Half, float>(drop, layout, x, begin, end, out);
        case Type::bf16: return drop_with<BFloat16, float>(drop, layout, x, begin, end, out);
        case Type::f32: return drop_with<float, float>(drop, layout, x, begin, end, out);
        case Type::f64: return drop_with<double, double>(drop, layout, x, begin, end, out);
        case Type::c64: return drop_with<Complex<float>, float>(drop, layout, x, begin, end, out);
        case Type::c128: return drop_with<Complex<double>, double>(drop, layout, x, begin, end, out);
        default: return;
    }
}

}  // namespace
}  // namespace spmdx
