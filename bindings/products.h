// Binds products of matrices by a BLAS that Python has opened.
#pragma once

#include <pybind11/pybind11.h>

namespace spmdx {
void bind_products(pybind11::module_& module);
}
