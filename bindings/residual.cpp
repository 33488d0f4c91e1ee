// Python's dropout, addition to a residual stream and norm in one pass, with its gradients: arrays checked,
// the GIL released, the work split over threads.
#include "bindings/residual.h"

#include <pybind11/stl.h>

#include <tuple>

#include "bindings/blocks.h"
#include "bindings/rows.h"

namespace spmdx {
namespace {

// The key's words, the global shape, the intervals that the block holds, the chance to be kept, and the
// scale.
using Dropped =
    std::optional<std::tuple<std::vector<uint32_t>, std::vector<uint64_t>, Intervals, double, double>>;

// What a kernel reads of it, if anything is dropped.
struct Mask {
    std::optional<Block> block;
    Drop drop{};

    Mask(const Dropped& of, const py::array& x) {
        if (!of) return;
        const auto& [words, shape, intervals, kept, scale] = *of;
        block.emplace(shape, intervals);
        need(block->layout.size == uint64_t(x.size()), "the mask's block has another size");
        drop = {x.itemsize() == 8 ? Type::f64 : Type::f32, key_of(words), float(kept), scale};
    }
    template <class T>
    void enter(AddNorm<T>& of) const {
        if (block) of.drop = &drop, of.layout = &block->layout;
    }
};

template <class T>
void run_add_norm_as(Maybe& stream, Maybe& out, const py::array& x, const Maybe& added, const Maybe& residual,
                     const Maybe& scale, const Maybe& bias, double eps, bool centered, const Mask& mask) {
    AddNorm<T> of{norm_of<T>(*stream, scale, bias, {}, eps, centered, room_of<T>(out)),
                  data_of<T>(x),
                  data_of<T>(added),
                  data_of<T>(residual),
                  nullptr,
                  room_of<T>(stream),
                  nullptr,
                  nullptr,
                  nullptr};
    mask.enter(of);
    const Neural<T>& use = neural<T>();
    const Size size = size_of(x);
    py::gil_scoped_release release;
    parallel(size.rows, grain(size.n), [&](uint64_t begin, uint64_t end) { use.add_norm(of, begin, end); });
}
void run_add_norm(Maybe stream, Maybe out, const py::array& x, const Maybe& added, const Maybe& residual,
                  const Maybe& scale, const Maybe& bias, double eps, bool centered, const Dropped& dropped) {
    need(stream && out && residual, "an operand is missing");
    const bool wide = check_rows(x, {&stream, &out, &residual}, {&added, &scale, &bias});
    const Mask mask(dropped, x);
    if (x.size())
        (wide ? run_add_norm_as<double> : run_add_norm_as<float>)(stream, out, x, added, residual, scale,
                                                                  bias, eps, centered, mask);
}

template <class T>
void run_add_norm_back_as(Maybe& out, Maybe& to_x, std::array<Maybe, 3>& vectors, const py::array& stream,
                          const Maybe& scale, const Maybe& g_stream, const Maybe& g, double eps,
                          bool centered, const Mask& mask) {
    AddNorm<T> of{norm_of<T>(stream, scale, {}, g, eps, centered, room_of<T>(out)),
                  nullptr,
                  nullptr,
                  nullptr,
                  data_of<T>(g_stream),
                  nullptr,
                  room_of<T>(to_x),
                  nullptr,
                  nullptr};
    mask.enter(of);
    const std::array<T*, 3> sums{room_of<T>(vectors[0]), room_of<T>(vectors[1]), room_of<T>(vectors[2])};
    const Neural<T>& use = neural<T>();
    const Size size = size_of(stream);
    py::gil_scoped_release release;
    in_chunks(size, sums, [&](uint64_t begin, uint64_t end, const std::array<T*, 3>& to) {
        use.add_norm_back(of, to[0], to[1], to[2], begin, end);
    });
}
void run_add_norm_back(Maybe out, Maybe to_x, std::array<Maybe, 3> vectors, const py::array& stream,
                       const Maybe& scale, const Maybe& g_stream, const Maybe& g, double eps, bool centered,
                       const Dropped& dropped) {
    need(out && g && bool(to_x) == bool(dropped), "an operand is missing");
    const bool wide =
        check_rows(stream, {&out, &to_x, &g_stream, &g}, {&vectors[0], &vectors[1], &vectors[2], &scale});
    const Mask mask(dropped, stream);
    (wide ? run_add_norm_back_as<double> : run_add_norm_back_as<float>)(out, to_x, vectors, stream, scale,
                                                                        g_stream, g, eps, centered, mask);
}

}  // namespace

void bind_residual(py::module_& m) {
    m.def("add_norm", &run_add_norm, py::arg("stream"), py::arg("out"), py::arg("x"), py::arg("added"),
          py::arg("residual"), py::arg("scale"), py::arg("bias"), py::arg("eps"), py::arg("centered"),
          py::arg("dropped"), "stream = residual + dropout of (x + added); out = its norm.");
    m.def(
        "add_norm_back", &run_add_norm_back, py::arg("out"), py::arg("to_x"), py::arg("vectors"),
        py::arg("stream"), py::arg("scale"), py::arg("g_stream"), py::arg("g"), py::arg("eps"),
        py::arg("centered"), py::arg("dropped"),
        "The gradients of add_norm with respect to residual and x, and to scale, bias and added: those that "
        "are given.");
}

}  // namespace spmdx
