// Types of Python callables that are called by position, without what pybind11 does for each call: what is
// called for each operation of a program has no room for it.
#pragma once

#include <pybind11/pybind11.h>
#include <structmember.h>

#include <array>
#include <cstddef>
#include <initializer_list>
#include <new>

namespace spmdx {

namespace py = pybind11;

// An object with some references, none of which is null. What derives from it adds plain numbers.
template <size_t count>
struct Callable {
    PyObject ob_base;
    vectorcallfunc function;
    std::array<PyObject*, count> held;

    static Callable* of(PyObject* x) { return reinterpret_cast<Callable*>(x); }
    static int traverse(PyObject* x, visitproc visit, void* arg) {
        Py_VISIT(Py_TYPE(x));
        for (PyObject* each : of(x)->held) Py_VISIT(each);
        return 0;
    }
    static int clear(PyObject* x) {
        for (PyObject*& each : of(x)->held) Py_CLEAR(each);
        return 0;
    }
    static void deallocate(PyObject* x) {
        PyTypeObject* const type = Py_TYPE(x);
        PyObject_GC_UnTrack(x);
        clear(x);
        type->tp_free(x);
        Py_DECREF(type);
    }
};

// The type of T, which derives from Callable<count>.
template <class T>
PyTypeObject* callable_type(const char* name) {
    static PyMemberDef members[]{
        {"__vectorcalloffset__", T_PYSSIZET, offsetof(typename T::Base, function), READONLY, nullptr},
        {nullptr, 0, 0, 0, nullptr}};
    static PyType_Slot slots[]{{Py_tp_members, members},
                               {Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
                               {Py_tp_traverse, reinterpret_cast<void*>(&T::traverse)},
                               {Py_tp_clear, reinterpret_cast<void*>(&T::clear)},
                               {Py_tp_dealloc, reinterpret_cast<void*>(&T::deallocate)},
                               {0, nullptr}};
    PyType_Spec description{name, sizeof(T), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                                Py_TPFLAGS_DISALLOW_INSTANTIATION,
                            slots};
    auto* const type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&description));
    if (!type) throw py::error_already_set();
    return type;
}

// A new one, and as what it can be filled in. Numbers are 0.
template <class T>
std::pair<py::object, T*> make_callable(PyTypeObject* type, vectorcallfunc function,
                                        std::initializer_list<py::handle> held) {
    PyObject* const made = type->tp_alloc(type, 0);
    if (!made) throw py::error_already_set();
    T* const self = reinterpret_cast<T*>(made);
    self->function = function;
    size_t i = 0;
    for (const py::handle& each : held) self->held[i++] = each.inc_ref().ptr();
    return {py::reinterpret_steal<py::object>(made), self};
}

}  // namespace spmdx
