// Python's Parcel and Channel: arrays checked, the GIL released. spmdx/runtime/shared.py says what they are
// for.
#include "bindings/messages.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <map>
#include <utility>

#include "bindings/callable.h"
#include "bindings/channel.h"

namespace py = pybind11;

namespace spmdx {
namespace {

using Sizes = std::vector<int64_t>;
using Boxes = std::vector<std::pair<Sizes, Sizes>>;  // starts and sizes
using Parts = std::vector<Boxes>;                    // for every member
const std::map<std::string, Verb> verbs{{"all_to_all", Verb::all_to_all},
                                        {"all_gather", Verb::all_gather},
                                        {"reduce_scatter", Verb::reduce_scatter},
                                        {"all_reduce", Verb::all_reduce}};
const std::map<std::string, Op> ops{{"sum", Op::sum}, {"prod", Op::prod}, {"min", Op::min}, {"max", Op::max}};
const std::map<std::pair<char, int64_t>, Number> numbers{
    {{'i', 4}, Number::i32}, {{'i', 8}, Number::i64}, {{'f', 4}, Number::f32}, {{'f', 8}, Number::f64}};

int64_t bytes_of(const Sizes& shape, int64_t item) {
    for (const int64_t n : shape) item *= n;
    return item;
}

// Every array's parts, one array after another within each member's stream.
std::vector<Part> parts_of(const std::vector<Sizes>& shapes, const std::vector<Parts>& parts, int64_t item) {
    std::vector<Part> all(parts.empty() ? 0 : parts[0].size());
    if (parts.size() != shapes.size()) throw std::invalid_argument("one list of parts for each array");
    for (size_t array = 0; array < parts.size(); ++array) {
        const Sizes& shape = shapes[array];
        if (parts[array].size() != all.size() || shape.size() > size_t(Box::most))
            throw std::invalid_argument("as many parts of each array, and at most 64 dimensions");
        for (size_t member = 0; member < all.size(); ++member) {
            for (const auto& [start, size] : parts[array][member]) {
                bool inside = start.size() == shape.size() && size.size() == shape.size();
                for (size_t d = 0; inside && d < shape.size(); ++d)
                    inside = start[d] >= 0 && size[d] >= 0 && size[d] <= shape[d] - start[d];
                if (!inside) throw std::invalid_argument("a box lies outside its array");
                all[member].add(Box(int(array), item, shape, start, size));
            }
        }
    }
    return all;
}

Parcel make_parcel(const std::string& verb, const std::string& op, int64_t signature, int rank, int size,
                   char kind, int64_t item, const std::vector<Sizes>& sources,
                   const std::vector<Parts>& sends, const std::vector<Sizes>& targets,
                   const std::vector<Parts>& receives) {
    Parcel made{};
    made.verb = verbs.at(verb);
    made.signature = signature;
    made.item = item;
    made.send = parts_of(sources, sends, item);
    made.receive = parts_of(targets, receives, item);
    const bool whole = made.verb == Verb::all_gather || made.verb == Verb::all_reduce;
    const bool reduces = made.verb == Verb::reduce_scatter || made.verb == Verb::all_reduce;
    if (rank < 0 || rank >= size || made.send.size() != (whole ? 1 : size_t(size)) ||
        made.receive.size() != (reduces ? 1 : size_t(size)))
        throw std::invalid_argument("one part for every member that data go to or come from");
    if (made.send[whole ? 0 : size_t(rank)].bytes != made.receive[reduces ? 0 : size_t(rank)].bytes)
        throw std::invalid_argument("a rank sends itself something else than it expects");
    if (reduces) {
        made.op = ops.at(op);
        made.number = numbers.at({kind, item});
    }
    for (const Sizes& shape : sources) made.sources.push_back(bytes_of(shape, item));
    for (const Sizes& shape : targets) made.targets.push_back(bytes_of(shape, item));
    return made;
}

// The memory of arrays, which must have the sizes that a parcel was made for. What is only read may lie in
// any order: then it is copied, and `kept`.
std::vector<char*> memory(const py::sequence& arrays, const Sizes& bytes, int64_t item,
                          std::vector<py::array>* kept) {
    if (arrays.size() != bytes.size())
        throw std::invalid_argument("the parcel is for another number of arrays");
    std::vector<char*> places;
    for (size_t i = 0; i < bytes.size(); ++i) {
        py::array array = arrays[i].cast<py::array>();
        if (kept && !(array.flags() & py::array::c_style)) {
            array = py::module_::import("numpy").attr("ascontiguousarray")(array);
            kept->push_back(array);
        }
        if (!(array.flags() & py::array::c_style) || array.nbytes() != bytes[i] || array.itemsize() != item ||
            (!kept && !array.writeable()))
            throw std::invalid_argument("expected a C-contiguous array of " + std::to_string(bytes[i]) +
                                        " bytes");
        places.push_back(static_cast<char*>(const_cast<void*>(array.data())));
    }
    return places;
}

// A channel, and the arrays that keep its memory.
struct Shared {
    std::vector<py::array> kept;
    Channel channel;

    // Without the GIL. A member that will never come is -2**32 - i. `leave` is called where this ends early:
    // others may still read the sources, and write to the targets.
    template <class Leave>
    int64_t carry(const Parcel& parcel, char* const* sources, char* const* targets, int64_t limit,
                  int64_t past_caches, const Leave& leave) {
        try {
            const py::gil_scoped_release release;
            return channel.carry(parcel, sources, targets, limit, past_caches);
        } catch (const Ended& ended) {
            leave();
            return Channel::ended - ended.member;
        } catch (...) {
            leave();
            throw;
        }
    }
};

std::unique_ptr<Shared> make_channel(const std::vector<py::array>& heaps, int rank, int64_t control,
                                     int64_t row, int64_t piece, const std::array<int64_t, 2>& stages,
                                     int spins, const std::vector<int64_t>& processes,
                                     const std::vector<std::array<uint64_t, 3>>& arenas) {
    const int64_t size = int64_t(heaps.size());
    if (rank < 0 || rank >= size || row < Channel::row(size) || piece <= 0 || piece % 64)
        throw std::invalid_argument(
            "0 <= rank < size, rows for 2 size + 5 numbers, pieces of whole cache lines");
    if (!processes.empty() && int64_t(processes.size()) != size)
        throw std::invalid_argument("a process for every member, or none");
    if (!arenas.empty() && int64_t(arenas.size()) != size)
        throw std::invalid_argument("an arena for every member, or none");
    std::vector<char*> places;
    for (const py::array& heap : heaps) {
        const int64_t end = std::max(
            {control + 64 * size + 16 * row, stages[0] + (size + 1) * piece, stages[1] + (size + 1) * piece});
        if (!(heap.flags() & py::array::c_style) || heap.nbytes() < end || control < 0 || stages[0] < 0 ||
            stages[1] < 0 || control % 64 || reinterpret_cast<uintptr_t>(heap.data()) % 64)
            throw std::invalid_argument("a heap is too small, or not on whole cache lines");
        places.push_back(static_cast<char*>(const_cast<void*>(heap.data())));
    }
    heaps[0].inc_ref();  // for ever: the end of the process writes there
    std::vector<Window> windows;
    for (const auto& [begin, bytes, here] : arenas)
        windows.push_back({begin, bytes, reinterpret_cast<char*>(here)});
    return std::unique_ptr<Shared>(new Shared{heaps, Channel(std::move(places), processes, std::move(windows),
                                                             rank, {control, row, piece, stages}, spins)});
}

// A channel's carry for messages of one block that are sent again and again.
struct Carrier : Callable<4> {
    using Base = Callable<4>;
    Shared* shared;
    const Parcel* parcel;
    int64_t limit, past_caches;
    int dims;
    std::array<Py_intptr_t, size_t(Box::most)> shape;

    PyObject* dtype() const { return held[2]; }
    PyObject* otherwise() const { return held[3]; }

    PyObject* ask(PyObject* block, PyObject* out, int64_t found) const {
        const auto code = py::reinterpret_steal<py::object>(PyLong_FromLongLong(found));
        PyObject* const passed[]{block, out, code.ptr()};
        return code ? PyObject_Vectorcall(otherwise(), passed, 3, nullptr) : nullptr;
    }
};
PyTypeObject* carrier_type = nullptr;

PyObject* carry_one(PyObject* callable, PyObject* const* args, size_t flags, PyObject* keywords) {
    auto* const self = reinterpret_cast<Carrier*>(callable);
    if (keywords || PyVectorcall_NARGS(flags) != 1) {
        PyErr_SetString(PyExc_TypeError, "one block, by position");
        return nullptr;
    }
    const Parcel& parcel = *self->parcel;
    const auto block = py::reinterpret_borrow<py::array>(args[0]);
    if (!py::isinstance<py::array>(block) || !(block.flags() & py::array::c_style) ||
        block.nbytes() != parcel.sources[0] || block.itemsize() != parcel.item)
        return self->ask(args[0], Py_None, 0);
    const auto& numpy = py::detail::npy_api::get();
    const auto out = py::reinterpret_steal<py::array>(
        numpy.PyArray_NewFromDescr_(numpy.PyArray_Type_, Py_NewRef(self->dtype()), self->dims,
                                    self->shape.data(), nullptr, nullptr, 0, nullptr));
    if (!out) return nullptr;
    char* const source = static_cast<char*>(const_cast<void*>(block.data()));
    char* const target = static_cast<char*>(const_cast<void*>(out.data()));
    try {
        const int64_t found = self->shared->carry(parcel, &source, &target, self->limit, self->past_caches,
                                                  [&] { block.inc_ref(), out.inc_ref(); });
        return found ? self->ask(block.ptr(), out.ptr(), found) : out.inc_ref().ptr();
    } catch (py::error_already_set& error) {  // an interrupt
        error.restore();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
}

py::object make_carrier(const py::object& channel, const py::object& parcel, const Sizes& shape,
                        const py::dtype& dtype, int64_t limit, int64_t past_caches,
                        const py::object& otherwise) {
    const auto& known = parcel.cast<const Parcel&>();
    if (known.sources.size() != 1 || known.targets.size() != 1 || shape.size() > size_t(Box::most) ||
        dtype.itemsize() != known.item || bytes_of(shape, known.item) != known.targets[0])
        throw std::invalid_argument("one block goes in, and one of this shape and dtype comes out");
    auto [made, self] = make_callable<Carrier>(carrier_type, &carry_one, {channel, parcel, dtype, otherwise});
    self->shared = &channel.cast<Shared&>();
    self->parcel = &known;
    self->limit = limit, self->past_caches = past_caches;
    self->dims = int(shape.size());
    std::copy(shape.begin(), shape.end(), self->shape.begin());
    return made;
}

}  // namespace

void bind_messages(py::module_& m) {
    m.def(
        "reads",
        [](int64_t process, uint64_t address, const py::bytes& there) {
            const std::string want = there;
            std::string found(want.size(), 0);
            const Stretch from{address, want.size()};
            return read_process(process, &from, 1, found.data()) && found == want;
        },
        py::arg("process"), py::arg("address"), py::arg("there"),
        "Whether this process can read another's memory, and finds there what should lie there.");
    py::class_<Parcel>(m, "Parcel", "What one rank sends and gets in a collective, as boxes of its blocks.")
        .def(py::init(&make_parcel), py::arg("verb"), py::arg("op"), py::arg("signature"), py::arg("rank"),
             py::arg("size"), py::arg("kind"), py::arg("item"), py::arg("sources"), py::arg("sends"),
             py::arg("targets"), py::arg("receives"));
    py::class_<Shared>(m, "Channel", "Collectives between ranks of one node, through memory they share.")
        .def(py::init(&make_channel), py::arg("heaps"), py::arg("rank"), py::arg("control"), py::arg("row"),
             py::arg("piece"), py::arg("stages"), py::arg("spins"),
             py::arg("processes") = std::vector<int64_t>{},
             py::arg("arenas") = std::vector<std::array<uint64_t, 3>>{})
        .def(
            "carry",
            [](Shared& self, const Parcel& parcel, const py::sequence& blocks, const py::sequence& outs,
               int64_t limit, int64_t past_caches) {
                std::vector<py::array> kept;
                const auto sources = memory(blocks, parcel.sources, parcel.item, &kept);
                const auto targets = memory(outs, parcel.targets, parcel.item, nullptr);
                return self.carry(parcel, sources.data(), targets.data(), limit, past_caches, [&] {
                    blocks.inc_ref(), outs.inc_ref();
                    for (const py::array& each : kept) each.inc_ref();
                });
            },
            py::arg("parcel"), py::arg("blocks"), py::arg("outs"), py::arg("limit"), py::arg("past_caches"),
            "0: done. More: nothing done on any rank, for the longest message has so many bytes. -1: the "
            "ranks mean different collectives. -2 - i: member i sends another number of bytes than is "
            "expected. -2**32 - i: member i will never come, for its program has ended.")
        .def_property_readonly(
            "reads", [](const Shared& self) { return self.channel.reads(); },
            "Whether long messages are read from where they lie in the other processes.")
        .def(
            "barrier",
            [](Shared& self) {
                py::gil_scoped_release release;
                try {
                    self.channel.barrier();
                } catch (const Ended& ended) {
                    return Channel::ended - ended.member;
                }
                return int64_t{0};
            },
            "Return when every member has come here: 0, or -2**32 - i as carry does.")
        .def(
            "sent", [](const Shared& self, int from, int to) { return self.channel.said(from, to); },
            py::arg("from_member"), py::arg("to_member"),
            "Bytes that one member said it sends another, in the last collective.");
    carrier_type = callable_type<Carrier>("spmdx._kernels.Carrier");
    m.def("carrier", &make_carrier, py::arg("channel"), py::arg("parcel"), py::arg("shape"), py::arg("dtype"),
          py::arg("limit"), py::arg("past_caches"), py::arg("otherwise"),
          "Channel.carry as a function of one block, which gives a new one of this shape and dtype. Where "
          "there is more to do than carry did, otherwise(block, result, what carry returned); of a block "
          "that does not lie in one stretch otherwise(block, None, 0), before anything was done.");
}

}  // namespace spmdx
