// What begins a gradient: leaves that are watched, and a function that runs while operations are recorded.
#include "bindings/recording.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <vector>

#include "bindings/records.h"

namespace spmdx {
namespace {

using Object = py::object;

PyObject* alias = nullptr;       // the rule of a leaf that is watched already; Python's, for ever
std::vector<Py_ssize_t> fields;  // of the context's record

// A fresh leaf with the value of each array, recorded as coming from it if that is watched itself; None if
// one of them is no array of floating-point numbers.
Object watch(const py::list& leaves) {
    static PyObject* const nothing = PyTuple_New(0);
    py::list found(leaves.size());
    for (size_t i = 0; i < leaves.size(); ++i) {
        PyObject* const x = leaves[i].ptr();
        if (!is_array(x) || !is_smooth(x)) return py::none();
        if (!slot(x, records.block)) py::getattr(x, "_block");  // it was let go: Python says so
        const bool again = Py_TYPE(x) == records.watched;
        PyObject* const made = wrapped(records.watched, slot(x, records.block), slot(x, records.spec));
        if (!made) throw py::error_already_set();
        found[i] = py::reinterpret_steal<Object>(made);
        slot(made, records.rule) = Py_NewRef(again ? alias : Py_None);
        slot(made, records.inputs) = again ? PyTuple_Pack(1, x) : Py_NewRef(nothing);
        slot(made, records.statics) = PyDict_New();
        slot(made, records.order) = PyIter_Next(records.counter);
        if (!slot(made, records.inputs) || !slot(made, records.statics) || !slot(made, records.order))
            throw py::error_already_set();
    }
    return found;
}

// function(*args) in one more gradient.
PyObject* deeper(PyObject*, PyObject* const* args, Py_ssize_t count) {
    PyObject* before;
    if (PyContextVar_Get(records.state, nullptr, &before) < 0) return nullptr;
    const auto kept = py::reinterpret_steal<Object>(before);
    PyTypeObject* const type = Py_TYPE(before);
    const auto state = py::reinterpret_steal<Object>(type->tp_alloc(type, 0));
    if (!state) return nullptr;
    for (const Py_ssize_t field : fields) slot(state.ptr(), field) = Py_XNewRef(slot(before, field));
    PyObject*& depth = slot(state.ptr(), records.depth);
    PyObject* const more = PyLong_FromLongLong(PyLong_AsLongLong(depth) + 1);
    if (!more) return nullptr;
    Py_XSETREF(depth, more);
    const auto token = py::reinterpret_steal<Object>(PyContextVar_Set(records.state, state.ptr()));
    if (!token) return nullptr;
    const auto found =
        py::reinterpret_steal<Object>(PyObject_Vectorcall(args[0], args + 1, size_t(count - 1), nullptr));
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    const bool ended = PyContextVar_Reset(records.state, token.ptr()) == 0;
    if (kind) {
        if (!ended) PyErr_Clear();
        PyErr_Restore(kind, value, trace);
        return nullptr;
    }
    return ended ? found.inc_ref().ptr() : nullptr;
}

void tell_recording(const Object& rule, const py::type& record) {
    alias = Object(rule).release().ptr();
    fields.clear();
    for (const py::handle name : record.attr("__slots__"))
        fields.push_back(offset_of(record, py::cast<std::string>(name).c_str()));
}

}  // namespace

void bind_recording(py::module_& m) {
    m.def("tell_recording", &tell_recording, py::arg("alias"), py::arg("record"),
          "The rule of a leaf that is watched already, and the type of the context's record.");
    m.def("watch", &watch, py::arg("leaves"),
          "A fresh leaf with the value of each array, recorded as coming from it if that is watched itself; "
          "None if one of them is no array of floating-point numbers.");
    static PyMethodDef quick{"deeper", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&deeper)),
                             METH_FASTCALL, "function(*args) in one more gradient."};
    m.attr("deeper") = py::reinterpret_steal<Object>(PyCFunction_New(&quick, nullptr));
}

}  // namespace spmdx
