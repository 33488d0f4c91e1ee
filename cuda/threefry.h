// Threefry2x32-20 (Salmon, Moraes, Dror and Shaw, 2011), and words from it as JAX counts them.
#pragma once

#include "philox.h"

namespace spmdx {

// The counter (x0, x1) becomes two words under (k0, k1).
SPMDX_FN void threefry(uint32_t& x0, uint32_t& x1, uint32_t k0, uint32_t k1) {
    constexpr int rotations[8] = {13, 15, 26, 6, 17, 29, 16, 24};
    const uint32_t k[3] = {k0, k1, k0 ^ k1 ^ 0x1BD11BDAu};
    x0 += k0;
    x1 += k1;
    SPMDX_UNROLL for (int group = 0; group < 5; ++group) {
        SPMDX_UNROLL for (int i = 0; i < 4; ++i) {
            const int r = rotations[4 * (group % 2) + i];
            x0 += x1;
            x1 = ((x1 << r) | (x1 >> (32 - r))) ^ x0;
        }
        x0 += k[(group + 1) % 3];
        x1 += k[(group + 2) % 3] + uint32_t(group + 1);
    }
}

// The 64 bits of the counter `number`, high word first, in and out.
SPMDX_FN uint64_t threefry(uint64_t number, uint32_t k0, uint32_t k1) {
    uint32_t x0 = uint32_t(number >> 32), x1 = uint32_t(number);
    threefry(x0, x1, k0, k1);
    return uint64_t(x0) << 32 | x1;
}

// One block of a key's stream, of either generator: four lanes, the first one low.
SPMDX_FN void block(Key key, uint64_t number, uint64_t& first, uint64_t& second) {
    if (key.threefry) {
        first = threefry(2 * number, key.k0, key.k1);
        second = threefry(2 * number + 1, key.k0, key.k1);
    } else {
        philox(number, key, first, second);
    }
}

// The key that folding a number into a key gives.
SPMDX_FN Key fold_in(Key key, uint64_t number) {
    if (key.threefry) {
        const uint64_t words = threefry(number, key.k0, key.k1);
        return {uint32_t(words >> 32), uint32_t(words), 0, 0, true};
    }
    uint64_t first, second;
    philox(number, {key.k0, key.k1, ~key.s0, ~key.s1, false}, first, second);
    return {uint32_t(first), uint32_t(first >> 32), uint32_t(second), uint32_t(second >> 32), false};
}

// How a distribution takes its words from a Threefry key. Every element has a counter of its own: one of 64
// bits takes both words, the second one low, a narrower one their exclusive or. Once under the key, or under
// each of the two keys of its split in turn.
struct Once {
    static constexpr int keys = 1;
};
struct Twice {
    static constexpr int keys = 2;
};
template <class D>
struct Taking {
    using How = Once;
    static constexpr bool wide = D::words / D::values != 1;
};

}  // namespace spmdx
