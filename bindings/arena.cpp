// Arrays in memory that is used again, and that other processes of this node can map: spmdx/runtime/pool.py
// and arena.py.
#include "bindings/arena.h"

#include <pybind11/numpy.h>

#include "bindings/messages.h"

namespace py = pybind11;

namespace spmdx {
namespace {

// Of this process, for ever: arrays lie in them to the end.
Arena *own = nullptr, *shared = nullptr;

template <Arena** arena>
py::object take_from(int64_t count, const py::dtype& dtype) {
    char* const place = *arena ? (*arena)->take(count * dtype.itemsize()) : nullptr;
    if (!place) return py::none();
    const py::capsule owner(place, [](void* mine) { (*arena)->give_back(static_cast<char*>(mine)); });
    return py::array(dtype, {count}, {dtype.itemsize()}, place, owner);
}

}  // namespace

void bind_arena(py::module_& m) {
    m.def(
        "open_arena",
        [](int64_t bytes) {
            if (!own) own = new Arena(bytes, false);
        },
        py::arg("bytes"),
        "Have memory that is used again, so many bytes. RuntimeError where the system has none.");
    m.def(
        "open_shared",
        [](int64_t bytes) {
            if (!shared) {
                shared = new Arena(bytes, true);
#if defined(__linux__)
                pthread_atfork([] { shared->before_fork(); }, [] { shared->after_fork_in_parent(); },
                               [] { shared->after_fork_in_child(); });
#endif
            }
            return py::make_tuple(shared->file(), reinterpret_cast<uintptr_t>(shared->base()),
                                  shared->bytes());
        },
        py::arg("bytes"), "The same, that others can map: its file, where it begins, and its bytes.");
    m.def("take_own", &take_from<&own>, py::arg("count"), py::arg("dtype"),
          "A new flat array in memory that is used again, not filled; None where there is no room.");
    m.def("take_shared", &take_from<&shared>, py::arg("count"), py::arg("dtype"),
          "The same in memory that others can map.");
    m.def(
        "map_arena",
        [](int64_t process, int file, int64_t bytes, const py::bytes& mark) {
            return reinterpret_cast<uintptr_t>(map_arena(process, file, bytes, mark));
        },
        py::arg("process"), py::arg("file"), py::arg("bytes"), py::arg("mark"),
        "Map the arena of a process of this node, which begins with `mark`, for ever: where it begins here. "
        "0 where "
        "this process may not.");
}

}  // namespace spmdx
