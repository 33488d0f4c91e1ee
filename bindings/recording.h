// Binds what begins a gradient: leaves that are watched, and a function that runs while operations are
// recorded.
#pragma once

#include <pybind11/pybind11.h>

namespace spmdx {
void bind_recording(pybind11::module_& module);
}
