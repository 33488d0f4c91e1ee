// The build of the kernels in use: the newest that this processor runs, unless a test asks for another.
#pragma once

#include <atomic>
#include <vector>

#include "bindings/build.h"

namespace spmdx {

inline std::vector<const Build*> supported_builds() {
    std::vector<const Build*> builds{&baseline_build};
    SPMDX_IF_AVX2(if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("bmi2")) builds.push_back(&avx2_build);)
    SPMDX_IF_AVX512(if (builds.size() == 2 && __builtin_cpu_supports("avx512f") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
                        builds.push_back(&avx512_build);)
    return builds;
}

inline std::atomic<const Build*>& build() {
    static std::atomic<const Build*> current{supported_builds().back()};
    return current;
}

}  // namespace spmdx
