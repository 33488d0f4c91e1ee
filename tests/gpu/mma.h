// cuda/mma.h for tests/gpu/emulated.h: what the instructions give, from the lanes of a warp.
#pragma once

#include <cmath>

#include "scalar.h"

namespace spmdx {

static uint32_t emulated_a[32][32][4], emulated_b[32][32][2];  // by warp and lane

template <class T>
inline float emulated_half(uint32_t pair, int which) {
    return widen(T{uint16_t(pair >> 16 * which)});
}
template <class T>
inline void multiply_tile(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], T) {
    const size_t warp = emulated::running / 32, lane = emulated::running % 32;
    for (int k = 0; k < 4; ++k) emulated_a[warp][lane][k] = a[k];
    for (int k = 0; k < 2; ++k) emulated_b[warp][lane][k] = b[k];
    emulated::wait(emulated::warp);
    for (int e = 0; e < 4; ++e) {
        const int row = int(lane / 4) + 8 * (e / 2), column = 2 * int(lane % 4) + e % 2;
        for (int k = 0; k < 16; ++k) {
            const uint32_t left = emulated_a[warp][4 * (row % 8) + k % 8 / 2][row / 8 + 2 * (k / 8)];
            const uint32_t right = emulated_b[warp][4 * column + k % 8 / 2][k / 8];
            c[e] += emulated_half<T>(left, k % 2) * emulated_half<T>(right, k % 2);
        }
    }
    emulated::wait(emulated::warp);
}
inline float power_of_two(float x) { return std::exp2(x); }
template <class T>
inline uint32_t pair_of(float low, float high, T) {
    return narrow_to(low, T()).bits | uint32_t(narrow_to(high, T()).bits) << 16;
}

}  // namespace spmdx
