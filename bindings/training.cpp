// Python's norms, softmax, sums over rows, biases, rotations and Adam: arrays checked, the GIL released, the
// work split over threads.
#include "bindings/training.h"

#include <pybind11/stl.h>

#include "bindings/operands.h"
#include "bindings/parts.h"
#include "bindings/rows.h"

namespace spmdx {
namespace {

template <class T>
void run_norm_as(py::array& out, const py::array& x, const Maybe& scale, const Maybe& bias, double eps,
                 bool centered) {
    const Norm<T> norm = norm_of<T>(x, scale, bias, {}, eps, centered, static_cast<T*>(out.mutable_data()));
    const Neural<T>& use = neural<T>();
    const Size size = size_of(x);
    py::gil_scoped_release release;
    parallel(size.rows, grain(size.n), [&](uint64_t begin, uint64_t end) { use.norm(norm, begin, end); });
}
void run_norm(const Maybe& out, const py::array& x, const Maybe& scale, const Maybe& bias, double eps,
              bool centered) {
    need(bool(out), "no output");
    py::array to = *out;
    const bool wide = check_rows(x, {&out}, {&scale, &bias});
    (wide ? run_norm_as<double> : run_norm_as<float>)(to, x, scale, bias, eps, centered);
}

template <class T>
void run_norm_back_as(Maybe& out, Maybe& to_scale, Maybe& to_bias, const py::array& x, const Maybe& scale,
                      const Maybe& g, double eps, bool centered) {
    const Norm<T> norm = norm_of<T>(x, scale, {}, g, eps, centered, room_of<T>(out));
    const std::array<T*, 2> sums{room_of<T>(to_scale), room_of<T>(to_bias)};
    const Neural<T>& use = neural<T>();
    const Size size = size_of(x);
    py::gil_scoped_release release;
    in_chunks(size, sums, [&](uint64_t begin, uint64_t end, const std::array<T*, 2>& to) {
        use.norm_back(norm, to[0], to[1], begin, end);
    });
}
void run_norm_back(Maybe out, Maybe to_scale, Maybe to_bias, const py::array& x, const Maybe& scale,
                   const Maybe& g, double eps, bool centered) {
    need(bool(g), "no gradient");
    const bool wide = check_rows(x, {&out, &g}, {&to_scale, &to_bias, &scale});
    (wide ? run_norm_back_as<double> : run_norm_back_as<float>)(out, to_scale, to_bias, x, scale, g, eps,
                                                                centered);
}

template <class T>
void run_softmax_as(Maybe& out, const py::array& x, const Maybe& g, bool logarithm, int64_t inner) {
    const Size size = size_of(x);
    const Softmax<T> of{size.n / inner, logarithm, data_of<T>(x), data_of<T>(g), room_of<T>(out), inner};
    const Neural<T>& use = neural<T>();
    const auto rows = g ? use.softmax_back : use.softmax;
    py::gil_scoped_release release;
    if (inner == 1 || !of.n)
        return parallel(size.rows, grain(of.n), [&](uint64_t begin, uint64_t end) { rows(of, begin, end); });
    const Parts parts = use.softmax_parts(of);
    parallel(size.rows * uint64_t(parts.each), grain(size.n / parts.each), [&](uint64_t begin, uint64_t end) {
        const Room<T> room(parts.room);
        use.softmax_columns(of, begin, end, room.data);
    });
}
void run_softmax(Maybe out, const py::array& x, bool logarithm, int64_t inner) {
    need(bool(out), "no output");
    const bool wide = check_rows(x, {&out}, {});
    need(inner > 0 && size_of(x).n % inner == 0, "rows are no whole number of columns");
    (wide ? run_softmax_as<double> : run_softmax_as<float>)(out, x, {}, logarithm, inner);
}
void run_softmax_back(Maybe out, const py::array& y, const Maybe& g, bool logarithm, int64_t inner) {
    need(out && g, "an operand is missing");
    const bool wide = check_rows(y, {&out, &g}, {});
    need(inner > 0 && size_of(y).n % inner == 0, "rows are no whole number of columns");
    (wide ? run_softmax_as<double> : run_softmax_as<float>)(out, y, g, logarithm, inner);
}

template <class T>
void run_sum_rows_as(Maybe& out, const py::array& x) {
    const T* const from = data_of<T>(x);
    const Neural<T>& use = neural<T>();
    const Size size = size_of(x);
    const std::array<T*, 1> sums{room_of<T>(out)};
    py::gil_scoped_release release;
    in_chunks(size, sums, [&](uint64_t begin, uint64_t end, const std::array<T*, 1>& to) {
        use.sum_rows(to[0], from, size.n, begin, end);
    });
}
void run_sum_rows(Maybe out, const py::array& x) {
    need(bool(out), "no output");
    (check_rows(x, {}, {&out}) ? run_sum_rows_as<double> : run_sum_rows_as<float>)(out, x);
}

template <class T>
void run_bias_gelu_as(Maybe& out, const py::array& x, const Maybe& bias, const Maybe& g, Maybe& sum) {
    const Size size = size_of(x);
    const Biased<T> rows{size.n, data_of<T>(x), data_of<T>(bias), data_of<T>(g), room_of<T>(out)};
    const std::array<T*, 1> sums{room_of<T>(sum)};
    const Neural<T>& use = neural<T>();
    py::gil_scoped_release release;
    if (g)
        return in_chunks(size, sums, [&](uint64_t begin, uint64_t end, const std::array<T*, 1>& to) {
            use.bias_gelu_back(rows, to[0], begin, end);
        });
    parallel(size.rows, grain(size.n),
             [&](uint64_t begin, uint64_t end) { use.bias_gelu(rows, begin, end); });
}
void run_bias_gelu(Maybe out, const py::array& x, const Maybe& bias, const Maybe& g, Maybe sum) {
    need(out && bias && (g || !sum), "an operand is missing");
    const bool wide = check_rows(x, {&out, &g}, {&bias, &sum});
    (wide ? run_bias_gelu_as<double> : run_bias_gelu_as<float>)(out, x, bias, g, sum);
}

template <class T>
void run_add_to_rows_as(Maybe& out, const py::array& x, const Maybe& bias) {
    T* const to = room_of<T>(out);
    const T *const from = data_of<T>(x), *const row = data_of<T>(bias);
    const Neural<T>& use = neural<T>();
    const Size size = size_of(x);
    py::gil_scoped_release release;
    parallel(size.rows, 4 * grain(size.n),
             [&](uint64_t begin, uint64_t end) { use.add_to_rows(to, from, row, size.n, begin, end); });
}
void run_add_to_rows(Maybe out, const py::array& x, const Maybe& bias) {
    need(out && bias, "an operand is missing");
    (check_rows(x, {&out}, {&bias}) ? run_add_to_rows_as<double> : run_add_to_rows_as<float>)(out, x, bias);
}

template <class T>
void run_rotation_as(Maybe& out, const py::array& x, const py::array& cos, const py::array& sin,
                     bool neighbours) {
    const py::ssize_t last = x.ndim() - 1;
    const int64_t heads = x.shape(last - 1), half = x.shape(last) / 2,
                  angles = cos.size() / std::max<int64_t>(1, half);
    const Rotation<T> by{heads,           half,           angles, neighbours, data_of<T>(x), data_of<T>(cos),
                         data_of<T>(sin), room_of<T>(out)};
    const Neural<T>& use = neural<T>();
    const Size size = size_of(x);
    py::gil_scoped_release release;
    parallel(size.rows, grain(size.n), [&](uint64_t begin, uint64_t end) { use.rotate(by, begin, end); });
}
void run_rotation(Maybe out, const py::array& x, const py::array& cos, const py::array& sin,
                  bool neighbours) {
    need(bool(out), "no output");
    const bool wide = check_rows(x, {&out}, {});
    need(is_wide(x, {cos, sin}) == wide && is_contiguous(cos) && is_contiguous(sin),
         "expected C-contiguous angles");
    need(x.ndim() > 2 && cos.ndim() > 1 && cos.size() == sin.size() && x.shape(x.ndim() - 1) % 2 == 0 &&
             cos.shape(cos.ndim() - 1) == x.shape(x.ndim() - 1) / 2 && (cos.size() || !x.size()),
         "an angle for every pair, and rows in heads");
    if (x.size()) (wide ? run_rotation_as<double> : run_rotation_as<float>)(out, x, cos, sin, neighbours);
}

// Adam, over all parameters at once. What it writes is not read soon: of large models it goes past the
// caches.
template <class T, bool past_caches>
void adam_in_tiles(const Neural<T>& use, const Adam<T>& of, const AdamNumbers& numbers, uint64_t begin,
                   uint64_t end) {
    constexpr uint64_t tile = 1024;
    alignas(64) T mean[tile], square[tile], step[tile];
    for (uint64_t at = begin; at < end; at += tile) {
        const uint64_t n = std::min(tile, end - at);
        const Adam<T> part{of.g + at, of.m + at, of.v + at, of.p ? of.p + at : nullptr, mean, square, step};
        use.adam(part, numbers, 0, n);
        const auto out = [&](T* to, const T* from) {
            copy_long<past_caches>(reinterpret_cast<char*>(to + at), reinterpret_cast<const char*>(from),
                                   int64_t(n * sizeof(T)));
        };
        out(of.mean, mean), out(of.square, square), out(of.step, step);
    }
}

template <class T>
void run_adam_as(const std::vector<Arrays>& given, const AdamNumbers& numbers) {
    std::vector<Adam<T>> all;
    std::vector<uint64_t> starts{0};
    for (const Arrays& each : given) {
        const auto room = [&](size_t i) {
            py::array out = each[i];
            return static_cast<T*>(out.mutable_data());
        };
        const bool decays = each.size() == 7;
        all.push_back({data_of<T>(each[0]), data_of<T>(each[1]), data_of<T>(each[2]),
                       decays ? data_of<T>(each[6]) : nullptr, room(3), room(4), room(5)});
        starts.push_back(starts.back() + uint64_t(each[0].size()));
    }
    const Neural<T>& use = neural<T>();
    const uint64_t count = starts.back();
    const bool past_caches = count * sizeof(T) >= 1 << 22;
    py::gil_scoped_release release;
    parallel(count, 1 << 15, [&](uint64_t begin, uint64_t end) {
        size_t i = size_t(std::upper_bound(starts.begin(), starts.end(), begin) - starts.begin()) - 1;
        for (; begin < end; begin = starts[++i]) {
            const uint64_t first = begin - starts[i], last = std::min(end, starts[i + 1]) - starts[i];
            past_caches ? adam_in_tiles<T, true>(use, all[i], numbers, first, last)
                        : use.adam(all[i], numbers, first, last);
        }
        if (past_caches) finish_copies();
    });
}
void run_adam(const std::vector<Arrays>& given, const std::array<double, 8>& n) {
    const AdamNumbers numbers{n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7]};
    if (given.empty()) return;
    bool wide = false;
    for (const Arrays& each : given) {
        need(each.size() == 6 || each.size() == 7, "g, m, v, three outputs, and p where it decays");
        for (const py::array& array : each)
            need(is_contiguous(array) && array.size() == each[0].size(),
                 "expected C-contiguous arrays of one size");
        wide = is_wide(given[0][0], each);
    }
    (wide ? run_adam_as<double> : run_adam_as<float>)(given, numbers);
}

}  // namespace

void bind_training(py::module_& m) {
    m.def("norm", &run_norm, py::arg("out"), py::arg("x"), py::arg("scale"), py::arg("bias"), py::arg("eps"),
          py::arg("centered"), "Rows of x brought to mean 0 and mean square 1.");
    m.def("norm_back", &run_norm_back, py::arg("out"), py::arg("to_scale"), py::arg("to_bias"), py::arg("x"),
          py::arg("scale"), py::arg("g"), py::arg("eps"), py::arg("centered"),
          "The gradients of norm with respect to x, scale and bias: those that are given.");
    m.def("softmax", &run_softmax, py::arg("out"), py::arg("x"), py::arg("logarithm"), py::arg("inner") = 1,
          "Softmax over the last dimension, or its logarithm; of `inner` columns, if rows are of such.");
    m.def("softmax_back", &run_softmax_back, py::arg("out"), py::arg("y"), py::arg("g"), py::arg("logarithm"),
          py::arg("inner") = 1, "The gradient of softmax, or of its logarithm, which has given y.");
    m.def("sum_rows", &run_sum_rows, py::arg("out"), py::arg("x"),
          "The sum over all dimensions but the last.");
    m.def("bias_gelu", &run_bias_gelu, py::arg("out"), py::arg("x"), py::arg("bias"), py::arg("g"),
          py::arg("sum"), "GELU of x + bias; with g the gradient with respect to x, and its sum over rows.");
    m.def("add_to_rows", &run_add_to_rows, py::arg("out"), py::arg("x"), py::arg("bias"),
          "out = x + bias, the same for every row.");
    m.def("rotate", &run_rotation, py::arg("out"), py::arg("x"), py::arg("cos"), py::arg("sin"),
          py::arg("neighbours"),
          "Pairs along the last dimension of x [..., t, heads, d] turned by angles [..., t, d / 2].");
    m.def("adam", &run_adam, py::arg("parameters"), py::arg("numbers"),
          "A step of Adam for parameters (g, m, v, the next m and v, the update, and p where it decays).");
}

}  // namespace spmdx
