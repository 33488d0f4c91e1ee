// Arrays in memory that is used again, and that other processes of this node can map: spmdx/runtime/pool.py
// and arena.py. And the memory of everything else: Python's objects, and the C library's heap.
#include "bindings/arena.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif
#include <pybind11/numpy.h>

#include <array>
#include <cstdlib>

#include "bindings/messages.h"
#include "bindings/objects.h"

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

ObjectPages& object_pages() {
    static auto* const pages = new ObjectPages;  // for ever: objects go until the very end
    return *pages;
}
PyObjectArenaAllocator before{};

void* take_piece(void*, size_t bytes) {
    void* const piece = object_pages().take(bytes);
    return piece ? piece : before.alloc(before.ctx, bytes);
}
void give_back_piece(void*, void* piece, size_t bytes) {
    if (!object_pages().give_back(static_cast<char*>(piece))) before.free(before.ctx, piece, bytes);
}
void hold_objects() {
    if (before.alloc) return;
    PyObject_GetArenaAllocator(&before);
    PyObjectArenaAllocator here{nullptr, &take_piece, &give_back_piece};
    PyObject_SetArenaAllocator(&here);
}

// What lies in the heap so far stays in the pages that it has.
void keep_freed(int kept, int largest, int growth) {
#if defined(__GLIBC__) && defined(__linux__)
    mallopt(M_TRIM_THRESHOLD, kept);
    mallopt(M_MMAP_THRESHOLD, largest);
    if (growth <= 0 || is_bounded(RLIMIT_AS) || is_bounded(RLIMIT_DATA)) return;
    mallopt(M_TOP_PAD, growth);
    char* const end = static_cast<char*>(sbrk(0));
    // What is free there is taken first, or the heap would not grow; no page of it is touched.
    std::array<void* volatile, 8> taken{};
    for (size_t i = 0; i < taken.size() && sbrk(0) == end; ++i) taken[i] = std::malloc(size_t(largest / 2));
    for (void* const each : taken) std::free(each);
    char* const now = static_cast<char*>(sbrk(0));
    if (now > end) madvise(end, size_t(now - end), MADV_HUGEPAGE);
#else
    (void)kept, (void)largest, (void)growth;
#endif
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
    m.def("hold_objects", &hold_objects, "Have Python's objects lie in large pages from now on.");
    m.def("keep_freed", &keep_freed, py::arg("kept"), py::arg("largest"), py::arg("growth"),
          "Have the C library keep up to so many freed bytes in its heap, in which what is shorter than "
          "`largest` lies, "
          "and have the heap grow by so many at once: those that it grows by now are of large pages.");
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
