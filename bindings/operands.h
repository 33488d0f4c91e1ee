// What the kernels of neural networks ask of the arrays that Python gives them.
#pragma once

#include <pybind11/numpy.h>

#include <optional>
#include <stdexcept>
#include <vector>

#include "bindings/dispatch.h"

namespace spmdx {

namespace py = pybind11;
using Arrays = std::vector<py::array>;
using Maybe = std::optional<py::array>;

inline void need(bool right, const char* what) {
    if (!right) throw std::invalid_argument(what);
}

// True for float64, False for float32; all arrays must have the dtype of the first.
inline bool is_wide(const py::array& first, const Arrays& others) {
    const char kind = first.dtype().kind();
    const py::ssize_t item = first.itemsize();
    need(kind == 'f' && (item == 4 || item == 8), "expected arrays of float32 or float64");
    for (const py::array& each : others)
        need(each.dtype().kind() == kind && each.itemsize() == item, "the arrays differ in dtype");
    return item == 8;
}

inline bool is_contiguous(const py::array& array) { return array.flags() & py::array::c_style; }

template <class T>
const Neural<T>& neural() {
    if constexpr (sizeof(T) == 4)
        return build().load()->neural32;
    else
        return build().load()->neural64;
}

template <class T>
const T* data_of(const py::array& array) {
    return static_cast<const T*>(array.data());
}
template <class T>
const T* data_of(const Maybe& array) {
    return array ? data_of<T>(*array) : nullptr;
}
template <class T>
T* room_of(Maybe& array) {
    return array ? static_cast<T*>(array->mutable_data()) : nullptr;
}

}  // namespace spmdx
