// Attention's operands, as both of its kernels take them: shapes, where rows lie, and which columns a row
// sees.
#pragma once

#include "gpu.h"

namespace spmdx {
namespace {

constexpr int leads = 3;

// Leading dimensions, heads that share k and v, rows of q, rows of k; elements of a row of q and k, and of v.
struct Shape {
    int64_t lead[leads], heads, rows, columns, inner, outer;
    double scale;
};
// Where an operand lies: strides in elements. Elements of a row lie side by side (of a mask `step` apart).
struct View {
    void* data;
    int64_t lead[leads], head, row, step;
};

template <class T>
SPMDX_FN T* at(const View& view, const Shape& shape, int64_t batch, int64_t head) {
    int64_t offset = head * view.head;
    for (int d = leads - 1; d >= 0; --d) {
        offset += batch % shape.lead[d] * view.lead[d];
        batch /= shape.lead[d];
    }
    return static_cast<T*>(view.data) + offset;
}

template <class C>
SPMDX_FN C infinity() {
    return C(bit_cast<double>(0x7FF0000000000000ull));
}

// How many columns the rows of a tile see at most: the same for all threads of the block.
SPMDX_FN int64_t seen_by(const int64_t* limits, int64_t first, int64_t rows, int64_t columns, int tile) {
    if (!limits) return columns;
    int64_t most = 0;
    for (int i = 0; i < tile && first + i < rows; ++i) {
        const int64_t own = limits[first + i] + 1;
        most = own > most ? own : most;
    }
    return most < columns ? most : columns;
}

struct Sight {
    const uint8_t* mask;
    int64_t row_step, step;
    const int64_t* limits;
    SPMDX_METHOD bool sees(int64_t row, int64_t column, int64_t rows, int64_t columns) const {
        if (row >= rows || column >= columns || (limits && column > limits[row])) return false;
        return !mask || mask[row * row_step + column * step];
    }
};
SPMDX_FN Sight sight(const View& mask, const Shape& s, int64_t batch, int64_t head, const int64_t* limits) {
    return {mask.data ? at<uint8_t>(mask, s, batch, head) : nullptr, mask.row, mask.step, limits};
}

}  // namespace
}  // namespace spmdx
