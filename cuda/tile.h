// On a CPU, the words of several blocks at once, in loops that the compiler vectorises.
#pragma once

#include "threefry.h"

#define SPMDX_TILE __attribute__((noinline)) void

namespace spmdx {
namespace {

constexpr int tile_blocks = 64;  // at most

// The words of the blocks numbered numbers[0], numbers[1], ..., a multiple of 16 of them.
SPMDX_TILE philox_tile(Key key, const uint64_t* numbers, uint64_t blocks, uint32_t* out) {
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

// The same from Threefry, under keys[0], or under both keys in turn (`How` is Once or Twice).
template <class How, bool wide>
SPMDX_TILE threefry_tile(const Key* keys, const uint64_t* numbers, uint64_t blocks, uint32_t* out) {
    constexpr uint64_t words = wide ? 2 : 1, step = words * How::keys, per_block = 4 / step;
    const uint64_t count = blocks * per_block;
    uint32_t x0[4 * tile_blocks], x1[4 * tile_blocks];
    for (int k = 0; k < How::keys; ++k) {
        const uint32_t k0 = keys[k].k0, k1 = keys[k].k1;
        SPMDX_FOR (uint64_t j = 0; j < blocks; ++j) {
            SPMDX_UNROLL for (uint64_t i = 0; i < per_block; ++i) {
                const uint64_t number = per_block * numbers[j] + i;
                x0[per_block * j + i] = uint32_t(number >> 32);
                x1[per_block * j + i] = uint32_t(number);
            }
        }
        SPMDX_FOR (uint64_t j = 0; j < count; ++j) threefry(x0[j], x1[j], k0, k1);
        uint32_t* const to = out + words * uint64_t(k);
        SPMDX_FOR (uint64_t j = 0; j < count; ++j) {
            if constexpr (wide) {
                to[step * j] = x1[j];
                to[step * j + 1] = x0[j];
            } else {
                to[step * j] = x0[j] ^ x1[j];
            }
        }
    }
}

// The keys that folding `numbers` into one key gives, as pairs of words: what a block of each key's stream
// takes. Whole registers are written: up to 7 more than `count`.
constexpr uint64_t spill = 8;

SPMDX_TILE fold_tile(Key key, const uint64_t* numbers, uint64_t count, uint64_t* keys, uint64_t* streams) {
    if (key.threefry) {
        SPMDX_FOR (uint64_t j = 0; j < count; ++j) keys[j] = threefry(numbers[j], key.k0, key.k1);
        return;
    }
    const Key folding{key.k0, key.k1, ~key.s0, ~key.s1, false};
    for (uint64_t j = 0; j < count; j += sizeof(Lanes) / 8) {
        Lanes block, first, second;
        __builtin_memcpy(&block, numbers + j, sizeof(block));
        philox(block, folding, first, second);
        __builtin_memcpy(keys + j, &first, sizeof(first));
        __builtin_memcpy(streams + j, &second, sizeof(second));
    }
}

// Block numbers[j] of the stream of the j-th of these keys.
SPMDX_TILE stream_tile(bool of_threefry, const uint64_t* keys, const uint64_t* streams,
                       const uint64_t* numbers, uint64_t count, uint64_t* first, uint64_t* second) {
    if (of_threefry) {
        SPMDX_FOR (uint64_t j = 0; j < count; ++j) {
            const uint32_t k0 = uint32_t(keys[j] >> 32), k1 = uint32_t(keys[j]);
            first[j] = threefry(2 * numbers[j], k0, k1);
            second[j] = threefry(2 * numbers[j] + 1, k0, k1);
        }
        return;
    }
    for (uint64_t j = 0; j < count; j += sizeof(Lanes) / 8) {
        Lanes block, key, stream, one, two;
        __builtin_memcpy(&block, numbers + j, sizeof(block));
        __builtin_memcpy(&key, keys + j, sizeof(key));
        __builtin_memcpy(&stream, streams + j, sizeof(stream));
        philox(block, key, stream, one, two);
        __builtin_memcpy(first + j, &one, sizeof(one));
        __builtin_memcpy(second + j, &two, sizeof(two));
    }
}

}  // namespace
}  // namespace spmdx
