// Binds Parcel and Channel: arrays checked, the GIL released.
#pragma once

#include <pybind11/pybind11.h>

namespace spmdx {
void bind_messages(pybind11::module_& module);
}
