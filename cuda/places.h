// Where a block's elements lie in the global array, and what the generator gives for them: as kernels on a
// GPU ask for it, a thread for each block of the generator.
#pragma once

#include "continuous.h"
#include "gpu.h"
#include "jax.h"

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

// The global index at which a row of runs begins, along the innermost dimension at 0.
SPMDX_FN uint64_t base_of(const uint64_t* table, uint64_t row) {
    uint64_t base = 0;
    for (int d = int(table[0]) - 1; d >= 0; --d) {
        const uint64_t* const dim = table + 4 + 4 * d;
        uint64_t local = row % dim[0];
        row /= dim[0];
        const uint64_t* piece = table + dim[3];
        for (; local >= piece[1] - piece[0]; piece += 2) local -= piece[1] - piece[0];
        base += (piece[0] + local) * dim[1];
    }
    return base;
}

// The global index of the element that stands at `at` in the block.
SPMDX_FN uint64_t index_of(const Place& place, uint64_t at) {
    const uint64_t* const table = place.table;
    if (!table) return place.first + at;
    const uint64_t row = at / table[3], along = at - row * table[3];
    const uint64_t* run = table + 4 + 4 * table[0];
    while (along >= run[2] + run[1]) run += 3;
    return base_of(table, row) + run[0] + (along - run[2]);
}

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
        const uint64_t base = base_of(table, row);
        const uint64_t* run = table + 4 + 4 * outer;
        for (int r = 0; r < runs; ++r, run += 3) along(base + run[0], run[1], row * length + run[2]);
    }
}

// In a graph, the key of a replay: the number of the replay folded into the key.
SPMDX_FN Key of_replay(Key key, const uint64_t* replay) { return replay ? fold_in(key, *replay) : key; }

SPMDX_FN Key key_in(const uint32_t* words, int threefry) {
    return {words[0], words[1], threefry ? 0 : words[2], threefry ? 0 : words[3], threefry != 0};
}

}  // namespace
}  // namespace spmdx
