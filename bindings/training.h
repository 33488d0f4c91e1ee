// Binds norms, sums over rows, biases with activations, and Adam.
#pragma once

#include <pybind11/pybind11.h>

namespace spmdx {
void bind_training(pybind11::module_& module);
}
