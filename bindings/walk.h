// Binds the walk backwards through a gradient's records.
#pragma once

#include <pybind11/pybind11.h>

namespace spmdx {
void bind_walk(pybind11::module_& module);
}
