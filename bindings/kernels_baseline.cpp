#include "bindings/build.h"

const spmdx::Build spmdx::baseline_build = spmdx::make_build("baseline");
