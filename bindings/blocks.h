// What Python says of a block of random values: the part of the global array that it is, and the key.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cuda/layout.h"
#include "cuda/philox.h"

namespace spmdx {

using Intervals = std::vector<std::vector<std::pair<uint64_t, uint64_t>>>;

// The layout of a block, with the intervals that it points into.
struct Block {
    Layout layout{};
    std::vector<std::vector<Interval>> intervals;

    Block(const std::vector<uint64_t>& shape, const Intervals& pieces) {
        if (shape.size() != pieces.size() || shape.size() >= size_t(Layout::most))
            throw std::invalid_argument("one list of intervals per dimension, and fewer than 64 dimensions");
        // Dimensions after the last cut one are whole: they fold into it.
        int cut = int(shape.size()) - 1;
        uint64_t inner = 1;
        for (; cut > 0 && pieces[cut].size() == 1 &&
               pieces[cut][0] == std::pair<uint64_t, uint64_t>(0, shape[cut]);
             --cut)
            inner *= shape[cut];
        layout.outer = std::max(cut, 0);
        layout.size = 1;
        intervals.resize(layout.outer + 1);
        uint64_t stride = 1;
        for (int d = layout.outer; d >= 0; --d) {
            const bool innermost = d == layout.outer;
            const uint64_t scale = innermost ? inner : 1, extent = cut < 0 ? 1 : shape[d];
            uint64_t length = 0;
            const auto add = [&](uint64_t start, uint64_t stop) {
                if (start > stop || stop > extent)
                    throw std::invalid_argument("an interval lies outside its dimension");
                if (start == stop) return;
                intervals[d].push_back({start * scale, stop * scale});
                length += (stop - start) * scale;
            };
            if (cut < 0)
                add(0, 1);  // a 0-d array
            else
                for (const auto& [start, stop] : pieces[d]) add(start, stop);
            layout.intervals[d] = intervals[d].data();
            layout.counts[d] = int(intervals[d].size());
            layout.lengths[d] = length;
            layout.strides[d] = stride;
            layout.size *= length;
            stride *= extent * scale;
        }
    }
};

// Four words are a key of Philox, two of Threefry.
inline Key key_of(const std::vector<uint32_t>& words) {
    if (words.size() == 2) return {words[0], words[1], 0, 0, true};
    if (words.size() != 4) throw std::invalid_argument("a key has four words, or two of Threefry");
    return {words[0], words[1], words[2], words[3], false};
}

}  // namespace spmdx
