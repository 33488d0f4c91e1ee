// The Python module spmdx._kernels: arguments checked and unpacked, the GIL released, the work split over
// threads.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "bindings/barrier.h"
#include "bindings/dispatch.h"
#include "bindings/exit.h"
#include "bindings/parallel.h"

namespace py = pybind11;
using namespace spmdx;

namespace {

using Intervals = std::vector<std::vector<std::pair<uint64_t, uint64_t>>>;

template <class T>
T named(const std::map<std::string, T>& table, const std::string& name, const char* what) {
    const auto found = table.find(name);
    if (found == table.end()) throw std::invalid_argument(std::string("no ") + what + " \"" + name + "\"");
    return found->second;
}

const std::map<std::string, Kind> kinds{{"bits", Kind::bits},
                                        {"uniform", Kind::uniform},
                                        {"normal", Kind::normal},
                                        {"randint", Kind::randint},
                                        {"bernoulli", Kind::bernoulli}};
const std::map<std::string, std::pair<Type, int>> types{
    {"u8", {Type::u8, 1}},   {"u16", {Type::u16, 2}},   {"u32", {Type::u32, 4}}, {"u64", {Type::u64, 8}},
    {"f16", {Type::f16, 2}}, {"bf16", {Type::bf16, 2}}, {"f32", {Type::f32, 4}}, {"f64", {Type::f64, 8}}};
const std::map<std::string, Op> ops{{"sum", Op::sum}, {"prod", Op::prod}, {"min", Op::min}, {"max", Op::max}};
const std::map<std::pair<char, int>, Number> numbers{
    // by NumPy's kind and item size: a name takes 5 us to ask
    {{'i', 4}, Number::i32},
    {{'i', 8}, Number::i64},
    {{'f', 4}, Number::f32},
    {{'f', 8}, Number::f64}};

void check_plain(const py::array& array, py::ssize_t size, int item, bool writable) {
    if (!(array.flags() & py::array::c_style) || array.size() != size || array.itemsize() != item)
        throw std::invalid_argument("expected a C-contiguous array of " + std::to_string(size) +
                                    " elements of " + std::to_string(item) + " bytes");
    if (writable && !array.writeable()) throw std::invalid_argument("the output array is read-only");
}

// The layout of a block, with the intervals that it points into.
struct Block {
    Layout layout{};
    std::vector<std::vector<Interval>> intervals;

    Block(const std::vector<uint64_t>& shape, const Intervals& pieces) {
        if (shape.size() != pieces.size() || shape.size() >= size_t(Layout::most))
            throw std::invalid_argument("one list of intervals per dimension, and fewer than 64 dimensions");
        // Dimensions after the last cut one are whole: they fold into it.
        int cut = int(shape.size()) - 1;
        uint64_t inner = 1;
        for (; cut > 0 && pieces[cut].size() == 1 &&
               pieces[cut][0] == std::pair<uint64_t, uint64_t>(0, shape[cut]);
             --cut)
            inner *= shape[cut];
        layout.outer = std::max(cut, 0);
        layout.size = 1;
        intervals.resize(layout.outer + 1);
        uint64_t stride = 1;
        for (int d = layout.outer; d >= 0; --d) {
            const bool innermost = d == layout.outer;
            const uint64_t scale = innermost ? inner : 1, extent = cut < 0 ? 1 : shape[d];
            uint64_t length = 0;
            const auto add = [&](uint64_t start, uint64_t stop) {
                if (start > stop || stop > extent)
                    throw std::invalid_argument("an interval lies outside its dimension");
                if (start == stop) return;
                intervals[d].push_back({start * scale, stop * scale});
                length += (stop - start) * scale;
            };
            if (cut < 0)
                add(0, 1);  // a 0-d array
            else
                for (const auto& [start, stop] : pieces[d]) add(start, stop);
            layout.intervals[d] = intervals[d].data();
            layout.counts[d] = int(intervals[d].size());
            layout.lengths[d] = length;
            layout.strides[d] = stride;
            layout.size *= length;
            stride *= extent * scale;
        }
    }
};

void fill_block(py::array out, const std::string& kind, const std::string& type,
                const std::array<uint32_t, 4>& key, const std::vector<uint64_t>& shape,
                const Intervals& intervals, const std::array<double, 3>& real, uint64_t low, uint64_t span) {
    const Block block(shape, intervals);
    const auto [element, item] = named(types, type, "element type");
    check_plain(out, py::ssize_t(block.layout.size), item, true);
    const Draw draw{named(kinds, kind, "distribution"),
                    element,
                    {key[0], key[1], key[2], key[3]},
                    real[0],
                    real[1],
                    real[2],
                    low,
                    span,
                    float(real[0])};
    void* const data = out.mutable_data();
    const Build* const use = build().load();
    if (!use->fill(draw, block.layout, 0, 0, data))
        throw std::invalid_argument("no " + kind + " of type " + type);
    py::gil_scoped_release release;
    parallel(block.layout.size, 1 << 17,
             [&](uint64_t begin, uint64_t end) { use->fill(draw, block.layout, begin, end, data); });
}

void reduce_ordered(py::array out, const std::vector<py::array>& inputs, const std::string& op) {
    const py::dtype type = out.dtype();
    const int item = int(type.itemsize());
    const auto found = numbers.find({type.kind(), item});
    if (found == numbers.end())
        throw std::invalid_argument("no reduction of dtype " + py::str(type).cast<std::string>());
    if (inputs.empty()) throw std::invalid_argument("reduce_ordered needs at least one input");
    check_plain(out, out.size(), item, true);
    std::vector<const void*> in;
    for (const py::array& input : inputs) {
        check_plain(input, out.size(), item, false);
        if (!input.dtype().is(type) && !input.dtype().equal(type))
            throw std::invalid_argument("inputs and output differ in dtype");
        in.push_back(input.data());
    }
    const Op which = named(ops, op, "reduction");
    const Build* const use = build().load();
    const uint64_t size = uint64_t(out.size());
    void* const data = out.mutable_data();
    py::gil_scoped_release release;
    parallel(size, 1 << 18, [&, number = found->second](uint64_t begin, uint64_t end) {
        use->reduce(which, number, data, in.data(), int(in.size()), begin, end);
    });
}

template <class In, class Out>
py::array_t<Out> map_array(const py::array_t<In, py::array::c_style | py::array::forcecast>& in, int rows,
                           void (*function)(const In*, Out*, uint64_t)) {
    py::array_t<Out> out(std::vector<py::ssize_t>{rows, in.size()});
    function(in.data(), out.mutable_data(), uint64_t(in.size()));
    return out;
}

}  // namespace

PYBIND11_MODULE(_kernels, m) {
    m.doc() = "The kernels of cuda/, compiled for the CPU. spmdx.runtime.kernels is their Python face.";
    m.def("fill", &fill_block, py::arg("out"), py::arg("kind"), py::arg("type"), py::arg("key"),
          py::arg("shape"), py::arg("intervals"), py::arg("real") = std::array<double, 3>{},
          py::arg("low") = 0, py::arg("span") = 0,
          "Fill the block `out` of the global array of `shape` with random values.");
    m.def(
        "philox",
        [](const std::array<uint32_t, 4>& counter, const std::array<uint32_t, 2>& key) {
            uint64_t first, second;
            philox(counter[0] | uint64_t(counter[1]) << 32, {key[0], key[1], counter[2], counter[3]}, first,
                   second);
            return py::make_tuple(uint32_t(first), first >> 32, uint32_t(second), second >> 32);
        },
        py::arg("counter"), py::arg("key"), "One block of Philox4x32-10.");
    m.def("reduce_ordered", &reduce_ordered, py::arg("out"), py::arg("inputs"), py::arg("op"),
          "out = inputs[0] op inputs[1] op ..., element by element in that order.");
    m.def(
        "arrive_and_wait", &arrive_and_wait, py::arg("slots"), py::arg("rank"), py::arg("size"),
        py::arg("epoch"), py::arg("timeout") = 1e30, py::arg("spins") = 2000,
        "Announce `epoch` in this rank's slot and wait until every rank has; False after `timeout` seconds.");
    m.def("end_together", &end_together, py::arg("abort"), py::arg("finalize"), py::arg("finalized"),
          py::arg("comm"),
          "End MPI at exit(): MPI_Finalize after status 0, else MPI_Abort. Takes the functions' addresses.");
    m.def(
        "instruction_set", [] { return build().load()->name; }, "The instruction set of the kernels in use.");
    m.def(
        "instruction_sets",
        [] {
            std::vector<std::string> names;
            for (const Build* each : supported_builds()) names.push_back(each->name);
            return names;
        },
        "The instruction sets that this build and this processor offer, oldest first.");
    m.def(
        "set_instruction_set",
        [](const std::string& name) {
            std::map<std::string, const Build*> table;
            for (const Build* each : supported_builds()) table[each->name] = each;
            build().store(named(table, name, "instruction set here called"));
        },
        py::arg("name"));
    m.def("threads", [] { return thread_count.load(); }, "The most threads that a kernel starts.");
    m.def(
        "set_threads",
        [](int count) {
            if (count < 1) throw std::invalid_argument("at least one thread");
            thread_count.store(count);
        },
        py::arg("count"));
    m.def("log",
          [](const py::array_t<float>& x) { return map_array<float, float>(x, 1, build().load()->log32); });
    m.def("log64", [](const py::array_t<double>& x) {
        return map_array<double, double>(x, 1, build().load()->log64);
    });
    m.def("sincos_turn", [](const py::array_t<uint32_t>& angle) {
        return map_array<uint32_t, float>(angle, 2, build().load()->sincos32);
    });
    m.def("sincos_turn64", [](const py::array_t<uint64_t>& angle) {
        return map_array<uint64_t, double>(angle, 2, build().load()->sincos64);
    });
}
