// Boxes of blocks to and from a flat buffer: one launch for all boxes of a message.
#include "gpu.h"

namespace spmdx {
namespace {

// A box: the number of its first unit among all that are copied, its block, where it begins there and in the
// flat array, and loops over its units, the innermost first. A unit is what is copied at once: 1 to 16 bytes
// that lie side by side on both sides.
struct Box {
    static constexpr int most = 8;
    uint64_t begin, block, offset, flat;
    uint64_t loops, count[most], stride[most];
};

// Where the blocks of a message begin.
struct Bases {
    void* at[16];
};

struct alignas(16) Unit16 {
    uint64_t low, high;
};

// Of unit `at` of the stream: the box, found by halving, and then its place in the block.
template <class U, bool pack>
SPMDX_FN void copy_boxes(uint64_t units, uint64_t count, const Box* boxes, const Bases& blocks, U* flat) {
    for (uint64_t at = thread_number(); at < units; at += thread_count()) {
        uint64_t low = 0, high = count;  // the last box that begins at `at` or before
        while (high - low > 1) {
            const uint64_t middle = (low + high) / 2;
            if (boxes[middle].begin <= at)
                low = middle;
            else
                high = middle;
        }
        const Box& box = boxes[low];
        uint64_t rest = at - box.begin, place = box.offset;
        for (uint64_t d = 0; d + 1 < box.loops; ++d) {
            const uint64_t n = box.count[d];
            uint64_t outer;
            if ((rest | n) >> 32)
                outer = rest / n;
            else
                outer = uint32_t(rest) / uint32_t(n);
            place += (rest - outer * n) * box.stride[d];
            rest = outer;
        }
        if (box.loops) place += rest * box.stride[box.loops - 1];
        U* const there = static_cast<U*>(blocks.at[box.block]) + place;
        U* const here = flat + (box.flat + (at - box.begin));
        if (pack)
            *here = *there;
        else
            *there = *here;
    }
}

}  // namespace
}  // namespace spmdx

using namespace spmdx;

#define SPMDX_PACK(size, U)                                                                                  \
    extern "C" __global__ void pack_##size(uint64_t units, uint64_t count, const Box* boxes, Bases blocks,   \
                                           U* flat) {                                                        \
        copy_boxes<U, true>(units, count, boxes, blocks, flat);                                              \
    }                                                                                                        \
    extern "C" __global__ void unpack_##size(uint64_t units, uint64_t count, const Box* boxes, Bases blocks, \
                                             U* flat) {                                                      \
        copy_boxes<U, false>(units, count, boxes, blocks, flat);                                             \
    }
SPMDX_PACK(1, uint8_t)
SPMDX_PACK(2, uint16_t)
SPMDX_PACK(4, uint32_t)
SPMDX_PACK(8, uint64_t)
SPMDX_PACK(16, Unit16)

// One more replay of a graph has begun.
extern "C" __global__ void next_replay(uint64_t* number) { *number += 1; }
