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
#include "bindings/blocks.h"
#include "bindings/calls.h"
#include "bindings/dispatch.h"
#include "bindings/exit.h"
#include "bindings/farewell.h"
#include "bindings/messages.h"
#include "bindings/neural.h"
#include "bindings/parallel.h"
#include "bindings/products.h"
#include "bindings/recording.h"
#include "bindings/residual.h"
#include "bindings/training.h"
#include "bindings/walk.h"

namespace py = pybind11;
using namespace spmdx;

namespace {

template <class T>
T named(const std::map<std::string, T>& table, const std::string& name, const char* what) {
    const auto found = table.find(name);
    if (found == table.end()) throw std::invalid_argument(std::string("no ") + what + " \"" + name + "\"");
    return found->second;
}

const std::map<std::string, Kind> kinds{{"bits", Kind::bits},
                                        {"uniform", Kind::uniform},
                                        {"unit", Kind::unit},
                                        {"normal", Kind::normal},
                                        {"randint", Kind::randint},
                                        {"bernoulli", Kind::bernoulli},
                                        {"exponential", Kind::exponential},
                                        {"gumbel", Kind::gumbel},
                                        {"rayleigh", Kind::rayleigh},
                                        {"laplace", Kind::laplace},
                                        {"logistic", Kind::logistic},
                                        {"cauchy", Kind::cauchy},
                                        {"truncated_normal", Kind::truncated_normal},
                                        {"complex_normal", Kind::complex_normal},
                                        {"open32", Kind::open32},
                                        {"open64", Kind::open64}};
struct Signature {
    Function function;
    int operands, item;  // bytes of an element
};
const std::map<std::string, Signature> functions{{"exp32", {Function::exp32, 1, 4}},
                                                 {"exp64", {Function::exp64, 1, 8}},
                                                 {"log64", {Function::log64, 1, 8}},
                                                 {"log1p", {Function::log1p, 1, 8}},
                                                 {"ndtr", {Function::ndtr, 1, 8}},
                                                 {"ndtri", {Function::ndtri, 1, 8}},
                                                 {"between32", {Function::between32, 4, 4}},
                                                 {"between64", {Function::between64, 4, 8}},
                                                 {"truncated", {Function::truncated, 3, 8}},
                                                 {"multiply_high", {Function::multiply_high, 2, 8}},
                                                 {"log_poisson", {Function::log_poisson, 2, 8}},
                                                 {"log_binomial", {Function::log_binomial, 3, 8}}};
const std::map<std::string, Stream> stream_kinds{{"gamma", Stream::gamma},
                                                 {"log_gamma", Stream::log_gamma},
                                                 {"poisson", Stream::poisson},
                                                 {"binomial", Stream::binomial}};
const std::map<std::string, std::pair<Type, int>> types{
    {"u8", {Type::u8, 1}},   {"u16", {Type::u16, 2}},   {"u32", {Type::u32, 4}}, {"u64", {Type::u64, 8}},
    {"f16", {Type::f16, 2}}, {"bf16", {Type::bf16, 2}}, {"f32", {Type::f32, 4}}, {"f64", {Type::f64, 8}},
    {"c64", {Type::c64, 8}}, {"c128", {Type::c128, 16}}};
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

void fill_block(py::array out, const std::string& kind, const std::string& type,
                const std::vector<uint32_t>& key, const std::vector<uint64_t>& shape,
                const Intervals& intervals, const std::array<double, 3>& real, uint64_t low, uint64_t span) {
    const Block block(shape, intervals);
    const auto [element, item] = named(types, type, "element type");
    check_plain(out, py::ssize_t(block.layout.size), item, true);
    const Draw draw{named(kinds, kind, "distribution"),
                    element,
                    key_of(key),
                    real[0],
                    real[1],
                    real[2],
                    low,
                    span,
                    float(real[0]),
                    real[0],
                    real[1]};
    void* const data = out.mutable_data();
    const Build* const use = build().load();
    if (!use->fill(draw, block.layout, 0, 0, data))
        throw std::invalid_argument("no " + kind + " of type " + type);
    py::gil_scoped_release release;
    parallel(block.layout.size, 1 << 17,
             [&](uint64_t begin, uint64_t end) { use->fill(draw, block.layout, begin, end, data); });
}

// Operands of `size` elements, or of one that stands for all.
std::array<Operand, 4> operands(const std::vector<py::array>& inputs, size_t wanted, py::ssize_t size,
                                int item) {
    if (inputs.size() != wanted) throw std::invalid_argument(std::to_string(wanted) + " operands are needed");
    std::array<Operand, 4> in;
    for (size_t i = 0; i < in.size(); ++i) {
        const py::array& each = inputs[std::min(i, wanted - 1)];
        const bool one = each.size() == 1;
        check_plain(each, one ? 1 : size, item, false);
        in[i] = {each.data(), one ? 0u : 1u};
    }
    return in;
}

void map_arrays(py::array out, const std::string& name, const std::vector<py::array>& inputs) {
    const Signature what = named(functions, name, "function");
    check_plain(out, out.size(), what.item, true);
    const auto in = operands(inputs, size_t(what.operands), out.size(), what.item);
    void* const data = out.mutable_data();
    const Build* const use = build().load();
    const uint64_t size = uint64_t(out.size());
    py::gil_scoped_release release;
    parallel(size, 1 << 16,
             [&](uint64_t begin, uint64_t end) { use->map(what.function, data, in.data(), begin, end); });
}

void fill_streams(py::array out, const std::string& kind, const std::vector<uint32_t>& key,
                  const std::vector<uint64_t>& shape, const Intervals& intervals,
                  const std::vector<py::array>& inputs) {
    const Block block(shape, intervals);
    check_plain(out, py::ssize_t(block.layout.size), 8, true);
    const Stream what = named(stream_kinds, kind, "distribution with streams");
    const auto in = operands(inputs, what == Stream::binomial ? 2 : 1, out.size(), 8);
    const Key parent = key_of(key);
    double* const data = static_cast<double*>(out.mutable_data());
    const Build* const use = build().load();
    py::gil_scoped_release release;
    parallel(block.layout.size, 1 << 12, [&](uint64_t begin, uint64_t end) {
        use->streams(what, parent, block.layout, in.data(), begin, end, data);
    });
}

void drop_elements(py::array out, const py::array& x, const std::string& type,
                   const std::vector<uint32_t>& key, const std::vector<uint64_t>& shape,
                   const Intervals& intervals, double kept, double scale) {
    const Block block(shape, intervals);
    const auto [element, item] = named(types, type, "element type");
    if (element < Type::f16) throw std::invalid_argument("no dropout of type " + type);
    check_plain(out, py::ssize_t(block.layout.size), item, true);
    check_plain(x, out.size(), item, false);
    const Drop drop{element, key_of(key), float(kept), scale};
    const void* const in = x.data();
    void* const data = out.mutable_data();
    const Build* const use = build().load();
    py::gil_scoped_release release;
    parallel(block.layout.size, 1 << 16,
             [&](uint64_t begin, uint64_t end) { use->drop(drop, block.layout, in, begin, end, data); });
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
            philox(counter[0] | uint64_t(counter[1]) << 32, {key[0], key[1], counter[2], counter[3], false},
                   first, second);
            return py::make_tuple(uint32_t(first), first >> 32, uint32_t(second), second >> 32);
        },
        py::arg("counter"), py::arg("key"), "One block of Philox4x32-10.");
    m.def("map", &map_arrays, py::arg("out"), py::arg("function"), py::arg("inputs"),
          "out = function(inputs...), element by element; an input of one element stands for all.");
    m.def("fill_streams", &fill_streams, py::arg("out"), py::arg("kind"), py::arg("key"), py::arg("shape"),
          py::arg("intervals"), py::arg("inputs"),
          "Fill the float64 block `out`: each element draws from its own stream, its index folded into the "
          "key.");
    m.def(
        "threefry",
        [](uint64_t number, const std::array<uint32_t, 2>& key) {
            const uint64_t words = threefry(number, key[0], key[1]);
            return py::make_tuple(words >> 32, uint32_t(words));
        },
        py::arg("number"), py::arg("key"),
        "The two words of Threefry2x32-20 for a counter, high word first.");
    m.def("drop", &drop_elements, py::arg("out"), py::arg("x"), py::arg("type"), py::arg("key"),
          py::arg("shape"), py::arg("intervals"), py::arg("kept"), py::arg("scale"),
          "out = x * scale where the element's bernoulli is true with the chance `kept`, 0 elsewhere.");
    m.def("reduce_ordered", &reduce_ordered, py::arg("out"), py::arg("inputs"), py::arg("op"),
          "out = inputs[0] op inputs[1] op ..., element by element in that order.");
    bind_arena(m);
    bind_messages(m);
    bind_neural(m);
    bind_calls(m);
    bind_products(m);
    bind_residual(m);
    bind_training(m);
    bind_recording(m);
    bind_walk(m);
    m.def(
        "own_slot",
        [](const py::array_t<uint64_t>& slot) {
            if (!slot.writeable() || slot.size() < 1) throw std::invalid_argument("a number to write into");
            slot.inc_ref();  // for ever: it is written to at the very end
            own_slots.add(const_cast<uint64_t*>(slot.data()));
        },
        py::arg("slot").noconvert(), "Set the highest bit of the first number when this process ends.");
    m.def(
        "say_ended", [] { own_slots.say_ended(); },
        "Tell those who wait for this process, now or later, that it has come to its end.");
    m.def("end_together", &end_together, py::arg("abort"), py::arg("finalize"), py::arg("finalized"),
          py::arg("comm"),
          "End MPI at exit(): MPI_Finalize after status 0, else MPI_Abort. Takes the functions' addresses.");
    m.def(
        "own_count",
        [](const py::array_t<int64_t>& row) {
            if (row.size() != 2) throw std::invalid_argument("a key and a count");
            row.inc_ref();  // for ever: it is read at the very end
            own_counts.add(row.data());
        },
        py::arg("row").noconvert(),
        "A group's key and how many of its collectives this process has come to.");
    m.def("farewell_at_end", &farewell_at_end, py::arg("addresses"), py::arg("self"), py::arg("comm"),
          py::arg("byte"), py::arg("any_source"),
          "Have MPI_Finalize wait for all ranks, and answer those meanwhile that wait in a collective.");
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
