#include "bindings/build.h"

const spmdx::Build spmdx::avx2_build = spmdx::make_build("avx2");
