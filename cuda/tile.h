// On a CPU, the words of several blocks at once, in loops that the compiler vectorises.
#pragma once

#include "threefry.h"

namespace spmdx {
namespace {

constexpr int tile_blocks = 64;  // at most

// The words of the blocks numbered numbers[0], numbers[1], ..., a multiple of 16 of them.
__attribute__((noinline)) void philox_tile(Key key, const uint64_t* numbers, uint64_t blocks, uint32_t* out) {
    constexpr uint64_t width = sizeof(Lanes) / 8;
    typedef uint64_t Pair __attribute__((may_alias));  // two lanes at once
    Pair* const words = reinterpret_cast<Pair*>(out);
    for (uint64_t j = 0; j < blocks; j += width) {
        Lanes block, first, second;
        __builtin_memcpy(&block, numbers + j, sizeof(block));
        philox(block, key, first, second);
        for (uint64_t i = 0; i < width; ++i) {
            words[2 * (j + i)] = first[i];
            words[2 * (j + i) + 1] = second[i];
        }
    }
}

// The same from Threefry. A 64-bit element has both words of its counter, the second one low; a narrower
// element (not `wide`) has their exclusive or.
__attribute__((noinline)) void threefry_tile(Key key, const uint64_t* numbers, uint64_t blocks, bool wide,
                                             uint32_t* out) {
    const uint32_t k0 = key.k0, k1 = key.k1;
    const uint64_t per_block = wide ? 2 : 4, count = blocks * per_block;
    uint64_t both[4 * tile_blocks];
    for (uint64_t j = 0; j < count; ++j) both[j] = per_block * numbers[j / per_block] + j % per_block;
    SPMDX_FOR (uint64_t j = 0; j < count; ++j) both[j] = threefry(both[j], k0, k1);
    if (wide) {
        for (uint64_t j = 0; j < count; ++j) {
            out[2 * j] = uint32_t(both[j]);
            out[2 * j + 1] = uint32_t(both[j] >> 32);
        }
    } else {
        for (uint64_t j = 0; j < count; ++j) out[j] = uint32_t(both[j] >> 32) ^ uint32_t(both[j]);
    }
}

}  // namespace
}  // namespace spmdx
