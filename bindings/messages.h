// Binds Parcel and Channel, arrays checked, the GIL released; and the arena that channels read from.
#pragma once

#include <pybind11/pybind11.h>

namespace spmdx {
void bind_arena(pybind11::module_& module);
void bind_messages(pybind11::module_& module);
}  // namespace spmdx
