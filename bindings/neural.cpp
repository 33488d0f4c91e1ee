// Python's activations, scores and attention: arrays checked, the GIL released, the work split over threads.
// spmdx/runtime/neural.py says what they are for.
#include "bindings/neural.h"

#include <pybind11/stl.h>

#include <map>
#include <optional>
#include <tuple>

#include "bindings/blocks.h"
#include "bindings/operands.h"
#include "bindings/parallel.h"

namespace py = pybind11;

namespace spmdx {
namespace {

struct Signature {
    Activation which;
    size_t arrays, numbers;
};
const std::map<std::string, Signature> activations{
    {"gelu", {Activation::gelu, 1, 0}},
    {"gelu_back", {Activation::gelu_back, 2, 0}},
    {"gelu_erf", {Activation::gelu_erf, 1, 0}},
    {"gelu_erf_back", {Activation::gelu_erf_back, 2, 0}},
    {"silu", {Activation::silu, 1, 0}},
    {"silu_back", {Activation::silu_back, 2, 0}},
    {"swiglu", {Activation::swiglu, 2, 0}},
    {"mix", {Activation::mix, 2, 2}},
    {"mix_square", {Activation::mix_square, 2, 2}},
    {"adam_step", {Activation::adam_step, 2, 3}},
    {"adamw_step", {Activation::adamw_step, 3, 4}},
    {"passed", {Activation::passed, 2, 3}},
};

// An operand's memory, C-contiguous; or that of x[0], where it is repeated along the first dimension.
struct Part {
    py::array held;
    const char* data = nullptr;
    bool repeats = false;

    Part() = default;
    Part(const py::array& x, const py::array& out) : held(x) {
        need(x.size() == out.size(), "expected arrays of one size");
        repeats = !(x.flags() & py::array::c_style);
        if (repeats) {
            need(x.ndim() > 1 && x.ndim() == out.ndim() && x.shape(0) == out.shape(0) && x.strides(0) == 0,
                 "expected C-contiguous arrays, or repeated along the first dimension");
            held = py::array(x.dtype(), std::vector<py::ssize_t>(x.shape() + 1, x.shape() + x.ndim()),
                             std::vector<py::ssize_t>(x.strides() + 1, x.strides() + x.ndim()), x.data(), x);
            held = py::array::ensure(held, py::array::c_style);
            if (!held) throw py::error_already_set();
        }
        data = static_cast<const char*>(held.data());
    }
};

void run_activation(py::array out, const std::string& name, const Arrays& inputs,
                    const std::vector<double>& given) {
    const auto found = activations.find(name);
    need(found != activations.end(), "no such activation");
    need(inputs.size() == found->second.arrays && given.size() == found->second.numbers,
         "another number of operands");
    Numbers numbers{};
    const std::array<double*, 4> places{&numbers.a, &numbers.b, &numbers.c, &numbers.d};
    for (size_t i = 0; i < given.size(); ++i) *places[i] = given[i];
    const bool wide = is_wide(out, inputs);
    need(out.flags() & py::array::c_style, "expected a C-contiguous output");
    std::array<Part, 3> in;
    for (size_t i = 0; i < inputs.size(); ++i) in[i] = Part(inputs[i], out);
    for (size_t i = inputs.size(); i < in.size(); ++i) in[i] = in[i - 1];
    const bool by_parts = in[0].repeats || in[1].repeats || in[2].repeats;
    const uint64_t size = uint64_t(out.size()), part = by_parts ? size / uint64_t(out.shape(0)) : size;
    const size_t item = size_t(out.itemsize());
    char* const data = static_cast<char*>(out.mutable_data());
    const Build* const use = build().load();
    py::gil_scoped_release release;
    parallel(size, 1 << 15, [&](uint64_t begin, uint64_t end) {
        while (begin < end) {  // to the end of a part, and on
            const uint64_t first = begin / part * part, stop = std::min(end, first + part);
            std::array<const void*, 3> at;
            for (size_t i = 0; i < at.size(); ++i) at[i] = in[i].data + (in[i].repeats ? 0 : first * item);
            use->activate(found->second.which, wide, data + first * item, at.data(), numbers, begin - first,
                          stop - first);
            begin = stop;
        }
    });
}

void need_rows(const py::array& x, std::initializer_list<const py::array*> rows) {
    need(x.ndim() == 2 && (x.flags() & py::array::c_style), "expected rows, C-contiguous");
    for (const py::array* each : rows)
        need(each->ndim() == 1 && each->size() == x.shape(0) && (each->flags() & py::array::c_style),
             "expected a number for each row");
}
bool is_index(const py::array& array) { return array.dtype().kind() == 'i' && array.itemsize() == 8; }

template <class T>
void run_scores_as(py::array& out, const Scores<T>& given,
                   void (*Neural<T>::*f)(const Scores<T>&, uint64_t, uint64_t), const py::array& x,
                   const py::array& top) {
    Scores<T> scores = given;
    scores.n = int64_t(x.shape(1));
    scores.x = data_of<T>(x), scores.top = data_of<T>(top), scores.out = static_cast<T*>(out.mutable_data());
    const auto run = neural<T>().*f;
    const uint64_t rows = uint64_t(x.shape(0));
    py::gil_scoped_release release;
    parallel(rows, uint64_t(std::max<int64_t>(1, (1 << 15) / std::max<int64_t>(1, scores.n))),
             [&](uint64_t begin, uint64_t end) { run(scores, begin, end); });
}

template <class T>
void run_sums_as(py::array& out, const py::array& x, const py::array& top, bool powers) {
    run_scores_as<T>(out, {}, powers ? &Neural<T>::sum_exp : &Neural<T>::sum_low, x, top);
}
void run_sums(py::array out, const py::array& x, const py::array& top, bool powers) {
    const bool wide = is_wide(out, {x, top});
    need_rows(x, {&top, &out});
    (wide ? run_sums_as<double> : run_sums_as<float>)(out, x, top, powers);
}

template <class T>
void run_scores_back_as(py::array& out, const py::array& x, const py::array& top, const py::array& part,
                        const py::array& labels, const py::array& g, double even, double hit) {
    Scores<T> scores{};
    scores.part = data_of<T>(part), scores.g = data_of<T>(g), scores.labels = data_of<int64_t>(labels);
    scores.even = T(even), scores.hit = T(hit);
    run_scores_as<T>(out, scores, &Neural<T>::scores_back, x, top);
}
void run_scores_back(py::array out, const py::array& x, const py::array& top, const py::array& part,
                     const py::array& labels, const py::array& g, double even, double hit) {
    const bool wide = is_wide(out, {x, top, part, g});
    need_rows(x, {&top, &part, &labels, &g});
    need(is_index(labels), "labels are int64");
    need(out.ndim() == 2 && out.size() == x.size() && out.shape(0) == x.shape(0),
         "the output has another size");
    need(out.flags() & py::array::c_style, "expected a C-contiguous output");
    (wide ? run_scores_back_as<double> : run_scores_back_as<float>)(out, x, top, part, labels, g, even, hit);
}

template <class T>
void run_add_rows_as(py::array& out, const py::array& rows, const py::array& values) {
    const int64_t n = out.shape(1), count = rows.size(), last = out.shape(0);
    const int64_t* const index = static_cast<const int64_t*>(rows.data());
    need(std::all_of(index, index + count, [&](int64_t i) { return i >= 0 && i < last; }),
         "a row that is not there");
    T* const to = static_cast<T*>(out.mutable_data());
    const T* const from = static_cast<const T*>(values.data());
    const Neural<T>& use = neural<T>();
    py::gil_scoped_release release;
    parallel(uint64_t(n), uint64_t(std::max<int64_t>(16, (1 << 17) / std::max<int64_t>(1, count))),
             [&](uint64_t begin, uint64_t end) { use.add_rows(to, index, from, count, n, begin, end); });
}

void run_add_rows(py::array out, const py::array& rows, const py::array& values) {
    const bool wide = is_wide(out, {values});
    need_rows(values, {&rows});
    need(is_index(rows), "row numbers are int64");
    need(out.ndim() == 2 && out.shape(1) == values.shape(1) && (out.flags() & py::array::c_style),
         "expected C-contiguous rows as long as the values");
    (wide ? run_add_rows_as<double> : run_add_rows_as<float>)(out, rows, values);
}

// Attention. Leading dimensions are the same for all operands (their strides may be 0); q, g, out and the
// mask then have a dimension of heads.
template <class T>
Matrix<T> matrix_at(const py::array& array, py::ssize_t leading, int64_t index, int64_t head, bool heads) {
    char* at = static_cast<char*>(const_cast<void*>(array.data()));
    for (py::ssize_t d = leading - 1; d >= 0; --d) {
        at += index % array.shape(d) * array.strides(d);
        index /= array.shape(d);
    }
    if (heads) at += head * array.strides(leading);
    return {reinterpret_cast<T*>(at), array.strides(array.ndim() - 2) / int64_t(sizeof(T))};
}

// Of dropout: the key's words, the chance to be kept, the scale of what is; where heads and rows lie in the
// whole array of weights, and how many rows a head has there.
using Dropped =
    std::optional<std::tuple<std::vector<uint32_t>, double, double, py::array, py::array, int64_t>>;

struct Operands {
    const py::array &q, &k, &v;
    const Maybe &mask, &limits, &g, &out, &q_slope, &k_slope, &v_slope;
    const Kept* kept;
    const int64_t* numbers;  // of heads, where weights are dropped
};

template <class T>
void attend_as(const Operands& o, double scale) {
    const py::ssize_t leading = o.q.ndim() - 3;
    const int64_t heads = o.q.shape(leading), rows = o.q.shape(leading + 1);
    int64_t all = 1;
    for (py::ssize_t d = 0; d < leading; ++d) all *= o.q.shape(d);
    const Attention<T> base{rows,
                            o.k.shape(leading),
                            o.q.shape(leading + 2),
                            o.v.shape(leading + 1),
                            T(scale),
                            data_of<int64_t>(o.limits),
                            o.mask.has_value(),
                            o.kept,
                            {},
                            {},
                            {},
                            {},
                            {},
                            {}};
    const Neural<T>& use = neural<T>();
    const auto run = [&](uint64_t begin, uint64_t end) {
        const Room<T> room(use.workspace(base));
        std::vector<Head<T>> each(static_cast<size_t>(heads));
        for (int64_t i = int64_t(begin); i < int64_t(end); ++i) {
            Attention<T> a = base;
            a.k = matrix_at<const T>(o.k, leading, i, 0, false);
            a.v = matrix_at<const T>(o.v, leading, i, 0, false);
            for (int64_t h = 0; h < heads; ++h) {
                Head<T>& head = each[size_t(h)];
                head = {};
                if (o.kept) head.number = o.numbers[i * heads + h];
                head.q = matrix_at<const T>(o.q, leading, i, h, true);
                if (o.mask) {
                    head.mask = matrix_at<const uint8_t>(*o.mask, leading, i, h, true);
                    head.mask_step = o.mask->strides(o.mask->ndim() - 1);
                }
                if (o.g) {
                    head.g = matrix_at<const T>(*o.g, leading, i, h, true);
                    head.out = matrix_at<const T>(*o.out, leading, i, h, true);
                    if (o.q_slope) head.result = matrix_at<T>(*o.q_slope, leading, i, h, true);
                } else {
                    head.result = matrix_at<T>(*o.out, leading, i, h, true);
                }
            }
            if (i + 1 < int64_t(end)) {
                a.next_k = matrix_at<const T>(o.k, leading, i + 1, 0, false);
                a.next_v = matrix_at<const T>(o.v, leading, i + 1, 0, false);
            }
            if (o.k_slope) {
                a.k_slope = matrix_at<T>(*o.k_slope, leading, i, 0, false);
                a.v_slope = matrix_at<T>(*o.v_slope, leading, i, 0, false);
            }
            (o.g ? use.attend_back : use.attend)(a, each.data(), heads, room.data);
        }
    };
    py::gil_scoped_release release;
    const int64_t scores = std::max<int64_t>(1, heads * rows * base.columns);
    if (all && heads && rows)
        parallel(uint64_t(all), uint64_t(std::max<int64_t>(1, (1 << 12) / scores)), run);
}

// Rows as they are wanted: elements beside each other, rows whole elements apart.
void check_rows(const py::array& array, py::ssize_t ndim, const char* what) {
    const py::ssize_t item = array.itemsize(), last = array.ndim() - 1;
    need(array.ndim() == ndim, what);
    if (!array.size()) return;
    need(array.shape(last) < 2 || array.strides(last) == item, what);
    for (py::ssize_t d = 0; d < last; ++d) need(array.strides(d) % item == 0, what);
}

void run_attention(const py::array& q, const py::array& k, const py::array& v, const Maybe& mask,
                   const Maybe& limits, double scale, const Maybe& g, const Maybe& out, const Maybe& q_slope,
                   const Maybe& k_slope, const Maybe& v_slope, const Dropped& dropped) {
    const char* const what = "arrays of other shapes, or with elements of a row apart";
    const py::ssize_t ndim = q.ndim(), leading = ndim - 3;
    need(leading >= 0 && out && bool(k_slope) == bool(v_slope), what);
    Arrays all{k, v, *out};
    for (const Maybe& each : {g, q_slope, k_slope, v_slope})
        if (each) all.push_back(*each);
    const bool wide = is_wide(q, all);
    const auto fits = [&](const py::array& array, bool heads, py::ssize_t rows, py::ssize_t width) {
        check_rows(array, heads ? ndim : ndim - 1, what);
        for (py::ssize_t d = 0; d < leading; ++d) need(array.shape(d) == q.shape(d), what);
        need(!heads || array.shape(leading) == q.shape(leading), what);
        need(array.shape(array.ndim() - 2) == rows && array.shape(array.ndim() - 1) == width, what);
    };
    need(k.ndim() == ndim - 1 && v.ndim() == ndim - 1, what);
    const py::ssize_t rows = q.shape(leading + 1), columns = k.shape(leading), inner = q.shape(leading + 2),
                      outer = v.shape(leading + 1);
    fits(q, true, rows, inner), fits(k, false, columns, inner), fits(v, false, columns, outer);
    fits(*out, true, rows, outer);
    if (g) fits(*g, true, rows, outer);
    if (q_slope) fits(*q_slope, true, rows, inner);
    if (k_slope) fits(*k_slope, false, columns, inner), fits(*v_slope, false, columns, outer);
    for (const Maybe& written : {q_slope, k_slope, v_slope})
        need(!written || written->writeable(), "an output is read-only");
    need(g || out->writeable(), "the output is read-only");
    if (mask) {
        need(mask->dtype().kind() == 'b' && mask->ndim() == ndim,
             "the mask is an array of bools like the scores");
        for (py::ssize_t d = 0; d < leading + 2; ++d) need(mask->shape(d) == q.shape(d), what);
        need(mask->shape(ndim - 1) == columns, what);
    }
    need(!limits || (limits->dtype().kind() == 'i' && limits->itemsize() == 8 && limits->size() == rows &&
                     (limits->flags() & py::array::c_style)),
         "a limit in int64 for every row");
    Kept kept{};
    const int64_t* numbers = nullptr;
    if (dropped) {
        const auto& [words, chance, scale_of_kept, heads, its_rows, length] = *dropped;
        py::ssize_t all = 1;
        for (py::ssize_t d = 0; d <= leading; ++d) all *= q.shape(d);
        for (const auto& [each, size] : {std::pair(&heads, all), std::pair(&its_rows, rows)})
            need(is_index(*each) && is_contiguous(*each) && each->size() == size,
                 "a number in int64 for every head and row");
        kept = {key_of(words), float(chance), scale_of_kept, data_of<int64_t>(its_rows), length};
        numbers = data_of<int64_t>(heads);
    }
    (wide ? attend_as<double> : attend_as<float>)({q, k, v, mask, limits, g, out, q_slope, k_slope, v_slope,
                                                   dropped ? &kept : nullptr, numbers},
                                                  scale);
}

}  // namespace

void bind_neural(py::module_& m) {
    m.def("activate", &run_activation, py::arg("out"), py::arg("name"), py::arg("inputs"),
          py::arg("numbers") = std::vector<double>{},
          "out = an activation of the inputs, or g times its slope.");
    m.def("sum_scores", &run_sums, py::arg("out"), py::arg("x"), py::arg("top"), py::arg("powers"),
          "The sum of exp(x - top) for each row, or of x - top.");
    m.def("scores_back", &run_scores_back, py::arg("out"), py::arg("x"), py::arg("top"), py::arg("part"),
          py::arg("labels"), py::arg("g"), py::arg("even"), py::arg("hit"),
          "The gradient of cross-entropy: g (part exp(x - top) - even - hit at the label).");
    m.def("add_rows", &run_add_rows, py::arg("out"), py::arg("rows"), py::arg("values"),
          "out[rows[i]] += values[i], one after another.");
    m.def("attend", &run_attention, py::arg("q"), py::arg("k"), py::arg("v"), py::arg("mask"),
          py::arg("limits"), py::arg("scale"), py::arg("g"), py::arg("out"), py::arg("q_slope"),
          py::arg("k_slope"), py::arg("v_slope"), py::arg("dropped") = py::none(),
          "Attention into out; with g the gradients, into whichever of the slopes are given.");
}

}  // namespace spmdx
