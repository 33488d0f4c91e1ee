// The short way of an operation's call: one that was seen before is looked up, computed and wrapped here;
// every other goes on in Python. What is called for each operation of a program has no room for pybind11's
// own way.
#include "bindings/calls.h"

#include <pybind11/numpy.h>

#include <array>
#include <chrono>
#include <utility>
#include <vector>

#include "bindings/callable.h"
#include "bindings/records.h"

namespace spmdx {

Records records;

namespace {

thread_local std::vector<Call>* notes = nullptr;

// What looks after messages, how often it is called, and how many are on their way in this process.
PyObject* progress = nullptr;
std::chrono::duration<double> pause_between{0};
Py_ssize_t underway = 0;

void tell_progress(const py::object& function, double pause) {
    progress = py::object(function).release().ptr();
    pause_between = std::chrono::duration<double>(pause);
}

void fill(PyObject* x, Py_ssize_t offset, PyObject* value) { slot(x, offset) = Py_NewRef(value); }

// One operation as a function of its operands and then its static arguments, all by position.
struct ShortWay : Callable<4> {
    using Base = Callable<4>;
    Py_ssize_t operands;

    PyObject* operation() const { return held[0]; }
    // Calls that move nothing, to (function of blocks, spec, static).
    PyObject* memo() const { return held[1]; }
    PyObject* names() const { return held[2]; }
    // Python's way: (operation, operands, static, names).
    PyObject* otherwise() const { return held[3]; }
};
PyTypeObject* type = nullptr;

using Object = py::object;

Object tuple_of(PyObject* const* items, Py_ssize_t count) {
    PyObject* made = PyTuple_New(count);
    for (Py_ssize_t i = 0; made && i < count; ++i) PyTuple_SET_ITEM(made, i, Py_NewRef(items[i]));
    return py::reinterpret_steal<Object>(made);
}

PyObject* long_way(ShortWay* self, PyObject* const* args, Py_ssize_t count) {
    const Object operands = tuple_of(args, self->operands),
                 statics = tuple_of(args + self->operands, count - self->operands);
    if (!operands || !statics) return nullptr;
    PyObject* const passed[]{self->operation(), operands.ptr(), statics.ptr(), self->names()};
    return PyObject_Vectorcall(self->otherwise(), passed, 4, nullptr);
}

// (function of blocks, spec, static) of a call that was seen before, or none, perhaps with an error set. A
// call is known by its arrays' specs, the types of its Python numbers and its static arguments.
Object seen(ShortWay* self, PyObject* const* args, Py_ssize_t count) {
    PyObject* found;
    if (count == 1) {
        found = PyDict_GetItemWithError(self->memo(), slot(args[0], records.spec));
    } else {
        const auto key = py::reinterpret_steal<Object>(PyTuple_New(count));
        if (!key) return {};
        for (Py_ssize_t i = 0; i < count; ++i) {
            PyObject* part = args[i];
            if (i < self->operands)
                part = is_array(part) ? slot(part, records.spec) : reinterpret_cast<PyObject*>(Py_TYPE(part));
            PyTuple_SET_ITEM(key.ptr(), i, Py_NewRef(part));
        }
        found = PyDict_GetItemWithError(self->memo(), key.ptr());
        if (!found && PyErr_ExceptionMatches(PyExc_TypeError)) PyErr_Clear();  // lists and slices do not hash
    }
    return py::reinterpret_borrow<Object>(found);
}

void note(std::vector<Call>& into, PyObject* found, PyObject* const* args, Py_ssize_t operands,
          PyObject* made) {
    Call call{
        py::reinterpret_borrow<Object>(PyTuple_GET_ITEM(found, 0)), {}, py::reinterpret_borrow<Object>(made)};
    for (Py_ssize_t i = 0; i < operands; ++i)
        call.operands.push_back(py::reinterpret_borrow<Object>(args[i]));
    into.push_back(std::move(call));
}

PyObject* call(PyObject* callable, PyObject* const* args, size_t flags, PyObject* keywords) {
    auto* const self = reinterpret_cast<ShortWay*>(callable);
    const Py_ssize_t count = PyVectorcall_NARGS(flags), operands = self->operands;
    if (keywords || count != operands + PyTuple_GET_SIZE(self->names())) {
        PyErr_SetString(PyExc_TypeError, "operands and static arguments, all by position");
        return nullptr;
    }
    bool any = false, all = true, numbers = false, watched = false;
    for (Py_ssize_t i = 0; i < operands; ++i) {
        if (!is_array(args[i])) {
            numbers = true;
            continue;
        }
        any = true;
        all = all && slot(args[i], records.block) && slot(args[i], records.spec);
        watched = watched || Py_TYPE(args[i]) == records.watched;
    }
    if (!look_after()) return nullptr;
    if (!any || !all) return long_way(self, args, count);

    PyObject* state;
    if (PyContextVar_Get(records.state, nullptr, &state) < 0) return nullptr;
    watched = watched && PyObject_IsTrue(slot(state, records.depth)) > 0;
    const bool otherwise =
        slot(state, records.dry) != Py_None || (watched && slot(state, records.saving) != Py_None);
    Py_DECREF(state);
    if (otherwise) return long_way(self, args, count);
    const Object found = seen(self, args, count);
    if (!found) return PyErr_Occurred() ? nullptr : long_way(self, args, count);

    std::array<PyObject*, 8> few;  // more are rare
    std::vector<PyObject*> many(size_t(operands) > few.size() ? size_t(operands) : 0);
    PyObject** const blocks = many.empty() ? few.data() : many.data();
    for (Py_ssize_t i = 0; i < operands; ++i)
        blocks[i] = is_array(args[i]) ? slot(args[i], records.block) : args[i];
    const auto block = py::reinterpret_steal<Object>(
        PyObject_Vectorcall(PyTuple_GET_ITEM(found.ptr(), 0), blocks, size_t(operands), nullptr));
    if (!block) {
        if (!numbers || !PyErr_ExceptionMatches(PyExc_OverflowError)) return nullptr;
        PyErr_Clear();  // a Python number beyond the dtype that it is to take: the long way says so
        return long_way(self, args, count);
    }
    PyObject* const spec = PyTuple_GET_ITEM(found.ptr(), 1);
    if (!watched) {
        PyObject* const made = wrapped(records.array, block.ptr(), spec);
        if (made && notes) note(*notes, found.ptr(), args, operands, made);
        return made;
    }
    Object made = py::reinterpret_steal<Object>(wrapped(records.watched, block.ptr(), spec));
    if (!made) return nullptr;
    fill(made.ptr(), records.rule, self->operation());
    fill(made.ptr(), records.statics, PyTuple_GET_ITEM(found.ptr(), 2));
    slot(made.ptr(), records.inputs) = tuple_of(args, operands).release().ptr();
    slot(made.ptr(), records.order) = PyIter_Next(records.counter);
    return slot(made.ptr(), records.inputs) && slot(made.ptr(), records.order) ? made.release().ptr()
                                                                               : nullptr;
}

Object short_way(const Object& operation, const py::dict& memo, Py_ssize_t operands, const py::tuple& names,
                 const Object& otherwise) {
    if (!records.array) throw py::value_error("tell_arrays comes first");
    auto [made, self] = make_callable<ShortWay>(type, &call, {operation, memo, names, otherwise});
    self->operands = operands;
    return made;
}

void tell_arrays(const py::type& plain, const py::type& watched, const Object& state, const py::type& record,
                 const Object& counter, const py::type& spec) {
    records.block = offset_of(plain, "_block");
    records.spec = offset_of(plain, "spec");
    records.rule = offset_of(watched, "rule");
    records.inputs = offset_of(watched, "inputs");
    records.statics = offset_of(watched, "static");
    records.order = offset_of(watched, "order");
    records.depth = offset_of(record, "depth");
    records.saving = offset_of(record, "saving");
    records.dry = offset_of(record, "dry");
    records.rank = offset_of(record, "rank");
    records.dtype = offset_of(spec, "dtype");
    records.mesh = offset_of(spec, "mesh");
    records.state = Object(state).release().ptr();
    records.counter = Object(counter).release().ptr();
    records.watched = reinterpret_cast<PyTypeObject*>(Object(watched).release().ptr());
    records.array = reinterpret_cast<PyTypeObject*>(Object(plain).release().ptr());
}

}  // namespace

PyObject* wrapped(PyTypeObject* type, PyObject* block, PyObject* spec) {
    PyObject* made = type->tp_alloc(type, 0);
    if (!made) return nullptr;
    fill(made, records.block, block);
    fill(made, records.spec, spec);
    return made;
}

bool look_after() {
    using Clock = std::chrono::steady_clock;
    static thread_local Clock::time_point last;
    if (underway <= 0) return true;
    const auto now = Clock::now();
    if (now - last < pause_between) return true;
    last = now;
    PyObject* const done = PyObject_CallNoArgs(progress);
    Py_XDECREF(done);
    return done != nullptr;
}

bool is_smooth(PyObject* array) {
    const char kind =
        py::reinterpret_borrow<py::dtype>(slot(slot(array, records.spec), records.dtype)).kind();
    return kind == 'f' || kind == 'c' || kind == 'V';
}

Py_ssize_t offset_of(py::handle type, const char* name) {
    const Object found = type.attr(name);
    if (!PyObject_TypeCheck(found.ptr(), &PyMemberDescr_Type)) throw py::type_error("not a slot");
    return reinterpret_cast<PyMemberDescrObject*>(found.ptr())->d_member->offset;
}

std::vector<Call>* note_calls(std::vector<Call>* into) { return std::exchange(notes, into); }

void bind_calls(py::module_& m) {
    type = callable_type<ShortWay>("spmdx._kernels.ShortWay");
    m.def("tell_arrays", &tell_arrays, py::arg("plain"), py::arg("watched"), py::arg("state"),
          py::arg("record"), py::arg("counter"), py::arg("spec"),
          "The types of arrays, the context variable and the type of its record, what counts records, and "
          "the type of specs: read by every short way from now on.");
    m.def("tell_progress", &tell_progress, py::arg("progress"), py::arg("pause"),
          "What looks after messages that are on their way: every call of a short way, and every step of a "
          "walk, calls it, at most once in so many seconds.");
    m.def(
        "underway", [](Py_ssize_t more) { underway += more; }, py::arg("more"),
        "So many more messages are on their way in this process.");
    m.def("short_way", &short_way, py::arg("operation"), py::arg("memo"), py::arg("operands"),
          py::arg("names"), py::arg("otherwise"),
          "An operation as a function of its operands and then its static arguments. A call that is in the "
          "memo, by specs, types of Python numbers and static arguments, is computed as the memo says and "
          "recorded if anything watches; any other is otherwise(operation, operands, static, names).");
}

}  // namespace spmdx
