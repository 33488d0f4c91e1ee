// What tensor cores do, and the fast power of two, as PTX has them.
#pragma once

#include "portable.h"

namespace spmdx {

// c (16 x 8, float32) += a (16 x 16) b (16 x 8). Of lane 4 i + j: a is rows i and i + 8, columns 2 j, 2 j + 1
// and these + 8, in the order (i, 2j), (i + 8, 2j), (i, 2j + 8), (i + 8, 2j + 8); b rows 2 j, 2 j + 1 and
// these + 8 of column i; c rows i and i + 8 of columns 2 j and 2 j + 1.
SPMDX_FN void multiply_tile(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], BFloat16) {
    SPMDX_IF_TENSOR_CORES(asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                                       "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" : "+f"(c[0]),
                                       "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]),
                                       "r"(a[3]), "r"(b[0]), "r"(b[1]));)
}
SPMDX_FN void multiply_tile(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Half) {
    SPMDX_IF_TENSOR_CORES(asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
                                       "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" : "+f"(c[0]),
                                       "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]),
                                       "r"(a[3]), "r"(b[0]), "r"(b[1]));)
}

// 2**x within two units in the last place; 0 for -infinity.
SPMDX_FN float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Two numbers side by side, rounded.
SPMDX_FN uint32_t pair_of(float low, float high, BFloat16) {
    uint32_t both = 0;
    SPMDX_IF_TENSOR_CORES(asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));)
    return both;
}
SPMDX_FN uint32_t pair_of(float low, float high, Half) {
    uint32_t both = 0;
    SPMDX_IF_TENSOR_CORES(asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));)
    return both;
}

}  // namespace spmdx
