// Binds dropout, the addition to a residual stream and its norm in one pass.
#pragma once

#include <pybind11/pybind11.h>

namespace spmdx {
void bind_residual(pybind11::module_& module);
}
