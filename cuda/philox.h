// Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011).
#pragma once

#include "portable.h"

namespace spmdx {

// A key of spmdx: the Philox key (k0, k1) and the stream (s0, s1), the upper half of the counter. Or one of
// Threefry2x32, (k0, k1).
struct Key {
    uint32_t k0, k1, s0, s1;
    bool threefry;
};

// The ten rounds. W is uint64_t, or several of them in one register, of which the low 32 bits are the state
// and the rest is anything: so a product needs no shuffling, whatever the width. The key is one for all, or
// one for each.
template <class W, class K>
SPMDX_FN void philox_rounds(W& c0, W& c1, W& c2, W& c3, K k0, K k1) {
    SPMDX_UNROLL for (int round = 0; round < 10; ++round) {
        const W p0 = multiply_wide(c0, 0xD2511F53u), p1 = multiply_wide(c2, 0xCD9E8D57u);
        c0 = (p1 >> 32) ^ c1 ^ k0;
        c1 = p1;
        c2 = (p0 >> 32) ^ c3 ^ k1;
        c3 = p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

// The four words of block number `block` of the key's stream, as two 64-bit words, low lane first.
template <class W>
SPMDX_FN void philox(W block, Key key, W& first, W& second) {
    const W zero = block ^ block;
    W c0 = block, c1 = block >> 32, c2 = zero + uint64_t(key.s0), c3 = zero + uint64_t(key.s1);
    philox_rounds(c0, c1, c2, c3, uint64_t(key.k0), uint64_t(key.k1));
    first = (c0 & 0xFFFFFFFFull) | (c1 << 32);
    second = (c2 & 0xFFFFFFFFull) | (c3 << 32);
}

// The same where each number has a key of its own, which a block gave: k0 and k1 in one word, s0 and s1 in
// another.
template <class W>
SPMDX_FN void philox(W block, W key, W stream, W& first, W& second) {
    W c0 = block, c1 = block >> 32, c2 = stream, c3 = stream >> 32;
    philox_rounds(c0, c1, c2, c3, key, key >> 32);
    first = (c0 & 0xFFFFFFFFull) | (c1 << 32);
    second = (c2 & 0xFFFFFFFFull) | (c3 << 32);
}

}  // namespace spmdx
