// Where the elements of a block lie in the global array, as plain data, and the walk over its contiguous
// runs.
#pragma once

#include "portable.h"

namespace spmdx {

struct Interval {
    uint64_t start, stop;
};

// A block of a C-ordered array: for each dimension the intervals that it holds, all non-empty, in the block's
// order. The dimensions after the last one that is not whole are folded into the innermost, whose intervals
// count elements.
struct Layout {
    static constexpr int most = 64;  // dimensions, as NumPy allows
    int outer;                       // the number of dimensions before the innermost
    const Interval* intervals[most];
    int counts[most];        // intervals in each dimension
    uint64_t lengths[most];  // their lengths together
    uint64_t strides[most];  // in elements; of the innermost 1
    uint64_t size;           // elements of the block
};

namespace {

// Calls visit(first flat global index, position in the block, count) for each contiguous run in [begin, end)
// of the block.
template <class Visit>
inline void walk(const Layout& layout, uint64_t begin, uint64_t end, Visit visit) {
    if (begin >= end) return;
    const int outer = layout.outer;
    const Interval* runs = layout.intervals[outer];
    int piece[Layout::most];       // per outer dimension the interval,
    uint64_t index[Layout::most];  // and the global index in it
    uint64_t position = begin / layout.lengths[outer], skip = begin % layout.lengths[outer], base = 0;
    for (int d = outer - 1; d >= 0; --d) {
        uint64_t local = position % layout.lengths[d];
        position /= layout.lengths[d];
        int i = 0;
        for (; local >= layout.intervals[d][i].stop - layout.intervals[d][i].start; ++i)
            local -= layout.intervals[d][i].stop - layout.intervals[d][i].start;
        piece[d] = i;
        index[d] = layout.intervals[d][i].start + local;
        base += index[d] * layout.strides[d];
    }
    for (uint64_t at = begin; at < end;) {
        for (int r = 0; r < layout.counts[outer] && at < end; ++r) {
            uint64_t start = runs[r].start, count = runs[r].stop - start;
            if (skip >= count) {
                skip -= count;
                continue;
            }
            start += skip;
            count -= skip;
            skip = 0;
            if (count > end - at) count = end - at;
            visit(base + start, at, count);
            at += count;
        }
        for (int d = outer - 1; d >= 0; --d) {  // on to the next row, as an odometer turns
            const uint64_t before = index[d];
            bool wrapped = false;
            if (++index[d] == layout.intervals[d][piece[d]].stop) {
                wrapped = ++piece[d] == layout.counts[d];
                if (wrapped) piece[d] = 0;
                index[d] = layout.intervals[d][piece[d]].start;
            }
            base += (index[d] - before) * layout.strides[d];  // modulo 2**64 where it goes back
            if (!wrapped) break;
        }
    }
}

}  // namespace
}  // namespace spmdx
