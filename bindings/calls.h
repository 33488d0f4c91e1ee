// Binds the short way of an operation's call.
#pragma once

#include <pybind11/pybind11.h>

namespace spmdx {
void bind_calls(pybind11::module_& module);
}
