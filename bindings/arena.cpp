// Python's Arena: NumPy arrays in memory that the other processes of this node can map.
// spmdx/runtime/arena.py says what it is for.
#include "bindings/arena.h"

#include <pybind11/numpy.h>

#include "bindings/messages.h"

namespace py = pybind11;

namespace spmdx {
namespace {

Arena* arena = nullptr;  // of this process, for ever: arrays lie in it to the end

py::object take(int64_t bytes) {
    char* const place = arena ? arena->take(bytes) : nullptr;
    if (!place) return py::none();
    const py::capsule owner(place, [](void* mine) { arena->give_back(static_cast<char*>(mine)); });
    return py::array_t<uint8_t>({bytes}, {1}, reinterpret_cast<uint8_t*>(place), owner);
}

}  // namespace

void bind_arena(py::module_& m) {
    m.def(
        "open_arena",
        [](int64_t bytes) {
            if (!arena) {
                arena = new Arena(bytes);
#if defined(__linux__)
                pthread_atfork([] { arena->before_fork(); }, [] { arena->after_fork_in_parent(); },
                               [] { arena->after_fork_in_child(); });
#endif
            }
            return py::make_tuple(arena->file(), reinterpret_cast<uintptr_t>(arena->base()), arena->bytes());
        },
        py::arg("bytes"),
        "This process's arena, made at the first call with room for so many bytes: its file, where it "
        "begins, and "
        "its bytes. RuntimeError where the system has none.");
    m.def("take_from_arena", &take, py::arg("bytes"),
          "A new flat array of bytes in the arena, not filled; None where there is no room, or no arena.");
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
