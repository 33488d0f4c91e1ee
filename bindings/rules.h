// What the walk backwards sees of records, and gradient rules: as Python says them, or made again without it.
#pragma once

#include <pybind11/pybind11.h>

#include <utility>
#include <vector>

#include "bindings/records.h"

namespace spmdx {

// What Python does on the way, and where the slots of bundles lie; told once and for ever.
struct Ways {
    PyTypeObject *bundle = nullptr, *operation = nullptr;
    Py_ssize_t rule = 0, inputs = 0, statics = 0, order = 0;
    PyObject* joined = nullptr;    // (node, before, g): the sum of two cotangents of a node
    PyObject* settled = nullptr;   // (node, g): the cotangent of a node of another mesh, as its rule wants it
    PyObject* gradient = nullptr;  // (node, i, g): the gradient with respect to its operand i, or None
};
extern Ways ways;

inline py::object called(PyObject* function, std::initializer_list<PyObject*> args) {
    PyObject* const found = PyObject_Vectorcall(function, args.begin(), args.size(), nullptr);
    if (!found) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(found);
}

inline bool is_node(PyObject* x) { return Py_TYPE(x) == records.watched || Py_TYPE(x) == ways.bundle; }

// A record: of an array, or of a bundle of them.
struct Node {
    PyObject* x;
    bool bundle = Py_TYPE(x) == ways.bundle;

    PyObject* rule() const { return slot(x, bundle ? ways.rule : records.rule); }
    PyObject* inputs() const { return slot(x, bundle ? ways.inputs : records.inputs); }
    PyObject* statics() const { return slot(x, bundle ? ways.statics : records.statics); }
    int64_t order() const { return PyLong_AsLongLong(slot(x, bundle ? ways.order : records.order)); }
};

inline PyObject* spec_of(PyObject* array) { return slot(array, records.spec); }

inline bool is_true(const py::object& x) { return PyObject_IsTrue(x.ptr()) > 0; }

// Notes of calls are taken elsewhere, or nowhere, until this goes.
struct Notes {
    std::vector<Call>* before;
    explicit Notes(std::vector<Call>* into) : before(note_calls(into)) {}
    Notes(const Notes&) = delete;
    Notes& operator=(const Notes&) = delete;
    ~Notes() { note_calls(before); }
};

// The gradient with respect to operand i, or None; and whether a later one can be added in its place. Without
// a rank no rule is made again.
std::pair<py::object, bool> gradient(const Node& node, Py_ssize_t i, PyObject* g, PyObject* rank);

void forget_rules();
void keep_constant(const py::object& array);

}  // namespace spmdx
