// Binds activations, scores and attention: arrays checked, the GIL released, the work split over threads.
#pragma once

#include <pybind11/pybind11.h>

namespace spmdx {
void bind_neural(pybind11::module_& module);
}
