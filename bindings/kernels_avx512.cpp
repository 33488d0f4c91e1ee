#include "bindings/build.h"

const spmdx::Build spmdx::avx512_build = spmdx::make_build("avx512");
