// Arrays and their records as Python makes them, and calls that are noted down to be made again.
#pragma once

#include <pybind11/pybind11.h>

#include <vector>

namespace spmdx {

namespace py = pybind11;

// The types of arrays, and where slots lie. Python says so once and for ever.
struct Records {
    PyTypeObject *array = nullptr, *watched = nullptr;
    Py_ssize_t block = 0, spec = 0, rule = 0, inputs = 0, statics = 0, order = 0;
    Py_ssize_t dtype = 0, mesh = 0;                       // of a spec
    PyObject *state = nullptr, *counter = nullptr;        // the context's record, and the order of making
    Py_ssize_t depth = 0, saving = 0, dry = 0, rank = 0;  // of that record
};
extern Records records;

inline PyObject*& slot(PyObject* x, Py_ssize_t offset) {
    return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(x) + offset);
}

inline bool is_array(PyObject* x) { return Py_TYPE(x) == records.array || Py_TYPE(x) == records.watched; }

// Whether the numbers of an array have slopes: floating-point ones, complex ones and bfloat16's.
bool is_smooth(PyObject* array);

// An array of one of the two types, without its record.
PyObject* wrapped(PyTypeObject* type, PyObject* block, PyObject* spec);

// Where a slot of a type's objects lies.
Py_ssize_t offset_of(py::handle type, const char* name);

// A call of the short way: its function of blocks, its operands, and the array that it gave.
struct Call {
    py::object run;
    std::vector<py::object> operands;
    py::object made;
};

// Where this thread notes down the calls of the short way that nothing watches, from now on; null: nowhere.
// Returns where it did before.
std::vector<Call>* note_calls(std::vector<Call>* into);

// Messages that are on their way on any rank of this process go on; at no cost where there are none. False
// with an error set.
bool look_after();

}  // namespace spmdx
