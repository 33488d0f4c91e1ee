// Products of matrices: by our own kernel where the right-hand side is narrow (cuda/product.h), else by a
// BLAS that Python has opened: what a library offers besides NumPy's own. Either runs on one thread for each
// piece of the result; the pieces are ours.
#include "bindings/products.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "bindings/operands.h"
#include "bindings/parallel.h"

namespace spmdx {
namespace {

enum : int { row_major = 101, as_is = 111, transposed = 112 };  // the C interface's numbers

// cblas_sgemm or cblas_dgemm with sizes of 64 bits.
template <class T>
using Gemm = void (*)(int, int, int, int64_t, int64_t, int64_t, T, const T*, int64_t, const T*, int64_t, T,
                      T*, int64_t);

std::atomic<Gemm<float>> gemm32{nullptr};
std::atomic<Gemm<double>> gemm64{nullptr};
std::atomic<bool> own{false};  // whether our kernel is asked first

// Memory for a large result: (elements, dtype) -> a flat array. Python's, for ever.
PyObject* room = nullptr;
constexpr int64_t large = 1 << 18;  // bytes

py::array new_matrix(py::dtype dtype, int64_t rows, int64_t columns) {
    if (!room || rows * columns * dtype.itemsize() < large) {
        // By NumPy itself: a small product takes no longer than the way to it.
        const auto& numpy = py::detail::npy_api::get();
        const std::array<Py_intptr_t, 2> shape{rows, columns};
        PyObject* const made = numpy.PyArray_NewFromDescr_(numpy.PyArray_Type_, dtype.release().ptr(), 2,
                                                           shape.data(), nullptr, nullptr, 0, nullptr);
        if (!made) throw py::error_already_set();
        return py::reinterpret_steal<py::array>(made);
    }
    const py::array flat = py::reinterpret_borrow<py::object>(room)(rows * columns, dtype);
    return py::array(dtype, {rows, columns}, flat.data(), flat);
}

template <class T>
Gemm<T> gemm() {
    if constexpr (sizeof(T) == 4)
        return gemm32.load();
    else
        return gemm64.load();
}

// A matrix as BLAS takes it: rows one after another, or columns, `lead` elements apart.
struct Matrix {
    int64_t rows, columns, lead;
    bool turned;  // columns one after another

    // Elements from the start to row i, and to column i.
    int64_t row(int64_t i) const { return turned ? i : i * lead; }
    int64_t column(int64_t i) const { return turned ? i * lead : i; }
};

std::optional<Matrix> matrix_of(const py::array& array) {
    const py::ssize_t item = array.itemsize(), rows = array.shape(0), columns = array.shape(1);
    const auto apart = [&](int own, int other) -> int64_t {  // 0: not as BLAS takes it
        const py::ssize_t n = array.shape(other), step = array.strides(own);
        if (n > 1 && array.strides(other) != item) return 0;
        if (array.shape(own) == 1) return n;
        return step % item == 0 && step >= n * item ? step / item : 0;
    };
    if (const int64_t lead = apart(0, 1)) return Matrix{rows, columns, lead, false};
    if (const int64_t lead = apart(1, 0)) return Matrix{rows, columns, lead, true};
    return std::nullopt;
}

template <class T>
using Kernel = void (*)(const Multiplied<T>&, T*);

// The kernel that multiplies so many rows by such a matrix: one whose panels a cache holds and its columns
// fill, and enough rows. What a product does besides its sums so many have to pay for: to turn over a matrix
// whose columns lie one after another, or to read and write the result for few sums. Else null.
template <class T>
Kernel<T> kernel_for(int64_t rows, const Matrix& y) {
    constexpr int64_t item = sizeof(T), panel = 128 / item, most = 2048 / item;  // columns; of the short side
    constexpr int64_t least = 2048, few = 4, shallow = 32;                       // elements; rows; of k
    const int64_t side = std::min(y.rows, y.columns), columns = (y.columns + panel - 1) / panel * panel;
    const bool fits = side <= most && y.rows * y.columns >= least && 8 * y.columns >= 5 * columns;
    const bool pays = rows > (y.turned || y.rows < shallow ? least / side : few);
    return own.load() && fits && pays ? neural<T>().multiply : nullptr;
}

// The memory that the kernel packs operands into on this thread, which keeps it.
template <class T>
T* packing() {
    struct Free {
        void operator()(T* p) const { ::operator delete(p, std::align_val_t(4096)); }
    };
    thread_local std::unique_ptr<T, Free> room;
    thread_local int64_t size = 0;
    if (const int64_t wanted = neural<T>().multiply_room; size < wanted) {
        room.reset(static_cast<T*>(::operator new(size_t(wanted) * sizeof(T), std::align_val_t(4096))));
        size = wanted;
    }
    return room.get();
}

// out = or += x @ y, in pieces of whole rows or columns, whichever there are more of, one piece for each
// thread.
template <class T>
void multiply(T* out, const T* x, const T* y, const Matrix& a, const Matrix& b, bool onto, Kernel<T> kernel) {
    constexpr int64_t unit = 64;                 // rows or columns: a piece keeps the BLAS's own tiles whole
    constexpr int64_t least = int64_t{1} << 22;  // products of numbers that are worth another thread
    const int64_t m = a.rows, n = b.columns, k = a.columns;
    const bool by_rows = m >= n;
    const int64_t longer = std::max(m, n), units = (longer + unit - 1) / unit;
    const int64_t of_unit = std::max<int64_t>(1, unit * std::min(m, n) * k);
    parallel(uint64_t(units), uint64_t((least + of_unit - 1) / of_unit), [&](uint64_t first, uint64_t last) {
        const int64_t begin = int64_t(first) * unit, count = std::min(longer, int64_t(last) * unit) - begin;
        const int64_t rows = by_rows ? count : m, columns = by_rows ? n : count;
        const T *const left = x + (by_rows ? a.row(begin) : 0), *const right =
                                                                    y + (by_rows ? 0 : b.column(begin));
        T* const to = out + (by_rows ? begin * n : begin);
        if (kernel)
            return kernel({{left, a.row(1), a.column(1)},
                           {right, b.row(1), b.column(1)},
                           to,
                           n,
                           rows,
                           columns,
                           k,
                           onto},
                          packing<T>());
        gemm<T>()(row_major, a.turned ? transposed : as_is, b.turned ? transposed : as_is, rows, columns, k,
                  T(1), left, a.lead, right, b.lead, T(onto), to, n);
    });
}

// An operand as it is multiplied. Where it is a broadcast, a row that is every row of x is taken once, and so
// is a column that is every column of y: the result repeats them.
template <class T>
struct Operand {
    std::optional<Matrix> matrix;
    const T* data;
    bool repeats = false;
    std::vector<T> once{};

    Operand(const py::array& array, int along) : data(data_of<T>(array)) {
        if (array.shape(along) == 1 || array.strides(along) != 0) {
            matrix = matrix_of(array);
            return;
        }
        const py::ssize_t n = array.shape(1 - along), step = array.strides(1 - along);
        once.resize(size_t(n));
        for (py::ssize_t i = 0; i < n; ++i)
            std::memcpy(&once[size_t(i)], static_cast<const char*>(array.data()) + i * step, sizeof(T));
        data = once.data();
        repeats = true;
        matrix = along == 0 ? Matrix{1, n, n, false} : Matrix{n, 1, 1, false};
    }
};

// What a vector is repeated over: out = a v.
template <class T>
void apply_all(T* out, Strided<const T> a, const T* v, int64_t rows, int64_t depth) {
    const Applied<T> given{a, v, out, depth};
    const auto apply = neural<T>().apply;
    constexpr int64_t unit = 64, least = int64_t{1} << 18;  // of the result; elements worth another thread
    parallel(uint64_t((rows + unit - 1) / unit), uint64_t(std::max<int64_t>(1, least / (unit * depth))),
             [&](uint64_t first, uint64_t last) {
                 apply(given, int64_t(first) * unit, std::min(rows, int64_t(last) * unit));
             });
}

constexpr int64_t brief = 1 << 19;  // products of numbers for which others can wait

template <class T>
py::object product_as(const py::array& x, const py::array& y, Maybe& onto) {
    if (!gemm<T>() && !own.load()) return py::none();
    const Operand<T> a(x, 0), b(y, 1);
    if (!a.matrix || !b.matrix || a.matrix->columns != b.matrix->rows) return py::none();
    const int64_t m = a.matrix->rows, n = b.matrix->columns;
    const bool repeats = a.repeats || b.repeats;
    const Kernel<T> kernel = repeats ? nullptr : kernel_for<T>(m, *b.matrix);
    const bool applies = repeats && own.load() && neural<T>().multiply;
    if (!gemm<T>() && !kernel && !applies) return py::none();
    if (onto && (repeats || onto->ndim() != 2 || onto->shape(0) != m || onto->shape(1) != n ||
                 !is_contiguous(*onto) || !onto->writeable() || !x.dtype().equal(onto->dtype())))
        return py::none();
    py::array out = onto ? *onto : new_matrix(x.dtype(), m, n);
    T* to = static_cast<T*>(out.mutable_data());
    {
        std::optional<py::gil_scoped_release> release;
        if (m * n * a.matrix->columns > brief) release.emplace();
        const Matrix &left = *a.matrix, &right = *b.matrix;
        if (applies && a.repeats)
            apply_all<T>(to, {b.data, right.column(1), right.row(1)}, a.data, n, left.columns);
        else if (applies)
            apply_all<T>(to, {a.data, left.row(1), left.column(1)}, b.data, m, left.columns);
        else
            multiply(to, a.data, b.data, left, right, onto.has_value(), kernel);
    }
    if (!repeats) return out;
    const py::ssize_t item = sizeof(T);
    py::array view(x.dtype(), {x.shape(0), y.shape(1)}, {a.repeats ? 0 : n * item, b.repeats ? 0 : item}, to,
                   out);
    py::detail::array_proxy(view.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
    return view;
}

// x @ y, or None where the BLAS cannot: other than two matrices of one of its dtypes, in this machine's byte
// order, none of them empty, with rows or columns that lie one after another.
py::object product(const py::array& x, const py::array& y, Maybe onto) {
    if (x.ndim() != 2 || y.ndim() != 2 || !x.size() || !y.size()) return py::none();
    const py::dtype kind = x.dtype(), other = y.dtype();
    const py::ssize_t item = kind.itemsize();
    if (kind.kind() != 'f' || (item != 4 && item != 8) || kind.byteorder() != '=' ||
        !(kind.is(other) || kind.equal(other)))
        return py::none();
    return item == 8 ? product_as<double>(x, y, onto) : product_as<float>(x, y, onto);
}

PyObject *numpys = nullptr, *otherwise = nullptr;  // NumPy's matmul, and Python's way for the rest; for ever

// Whether NumPy may just multiply: small operands, no broadcasts.
bool is_plain(const py::array& x) {
    if (x.nbytes() > large / 4) return false;
    return std::find(x.strides(), x.strides() + x.ndim(), 0) == x.strides() + x.ndim();
}

// x @ y by whichever can, without what pybind11 does for each call.
PyObject* matmul(PyObject*, PyObject* const* args, Py_ssize_t count) {
    if (!otherwise) {
        PyErr_SetString(PyExc_RuntimeError, "use_blas was not told what multiplies otherwise");
        return nullptr;
    }
    PyObject* by = otherwise;
    try {
        if (count == 2 && py::isinstance<py::array>(args[0]) && py::isinstance<py::array>(args[1])) {
            const auto x = py::reinterpret_borrow<py::array>(args[0]),
                       y = py::reinterpret_borrow<py::array>(args[1]);
            py::object found = product(x, y, {});
            if (!found.is_none()) return found.release().ptr();
            if (is_plain(x) && is_plain(y)) by = numpys;
        }
    } catch (py::error_already_set& error) {
        error.restore();
        return nullptr;
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
        return nullptr;
    }
    return PyObject_Vectorcall(by, args, size_t(count), nullptr);
}

void use_blas(uintptr_t sgemm, uintptr_t dgemm, const py::object& take, const py::object& other,
              bool kernel) {
    own.store(kernel);
    room = take.is_none() ? nullptr : py::object(take).release().ptr();
    otherwise = other.is_none() ? nullptr : py::object(other).release().ptr();
    numpys = py::object(py::module_::import("numpy").attr("matmul")).release().ptr();
    gemm32.store(reinterpret_cast<Gemm<float>>(sgemm));
    gemm64.store(reinterpret_cast<Gemm<double>>(dgemm));
}

}  // namespace

void bind_products(py::module_& m) {
    m.def("use_blas", &use_blas, py::arg("sgemm"), py::arg("dgemm"), py::arg("take") = py::none(),
          py::arg("otherwise") = py::none(), py::arg("kernel") = false,
          "Multiply by these functions from now on: the addresses of cblas_sgemm and cblas_dgemm with sizes "
          "of 64 bits, that run on one thread; 0: by none. Large results are put into what take(elements, "
          "dtype) gives. matmul leaves to otherwise(x, y) what these functions cannot multiply. Whether our "
          "own "
          "kernel is asked first.");
    static PyMethodDef quick{"matmul", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&matmul)),
                             METH_FASTCALL, "x @ y, by whichever can."};
    m.attr("matmul") = py::reinterpret_steal<py::object>(PyCFunction_New(&quick, nullptr));
    m.def("product", &product, py::arg("x"), py::arg("y"), py::arg("onto") = py::none(),
          "x @ y for two matrices that the BLAS in use can multiply, else None; added to `onto`, if that is "
          "given.");
}

}  // namespace spmdx
