// Softmax of rows, or its logarithm, and their gradients, as the CPU has them: the functions of an element
// are those of the GPU, the order of a row's sums is not. It is the same on every processor.
#pragma once

#include "activation.h"
#include "lanes.h"

namespace spmdx {

// Rows of `n` elements that lie one after another, `out` apart from the others. With g: x is what softmax, or
// its logarithm, has given.
template <class T>
struct Softmax {
    int64_t n;
    bool logarithm;
    const T *x, *g;
    T* out;
};

namespace {

// `side` elements of a row.
template <class T>
SPMDX_FN Sides<T> sides_of(const T* from) {
    Sides<T> found;
    SPMDX_UNROLL for (int c = 0; c < found.count; ++c) found.each[c] = load(from + c * found.w);
    return found;
}
template <class T>
SPMDX_FN void put(T* to, const Sides<T>& sides) {
    SPMDX_UNROLL for (int c = 0; c < sides.count; ++c) store(to + c * sides.w, sides.each[c]);
}

// What is left of a row of n elements, less than `side`. Where as many lie beyond in rows that are yet to
// come, these are read, and written, with them.
struct End {
    int64_t whole, left;
    bool spare;
    SPMDX_METHOD End(int64_t n, uint64_t rows_to_come)
        : whole(n / side * side),
          left(n - whole),
          spare(uint64_t(n) * rows_to_come >= uint64_t(whole + side)) {}

    // With `other` in the place of what is not of the row.
    template <class T>
    SPMDX_METHOD Sides<T> read(const T* row, T other) const {
        if (!spare) {
            T lanes[side];
            SPMDX_UNROLL for (int j = 0; j < side; ++j) lanes[j] = other;
            for (int64_t j = 0; j < left; ++j) lanes[j] = row[whole + j];
            return sides_of(lanes);
        }
        Sides<T> found = sides_of(row + whole);
        SPMDX_UNROLL for (int c = 0; c < found.count; ++c) {
            const Vector<T> number = load(lane_numbers<T> + c * found.w);
            found.each[c] = number < spread(T(left)) ? found.each[c] : spread(other);
        }
        return found;
    }
    template <class T>
    SPMDX_METHOD void write(T* row, const Sides<T>& sides) const {
        if (spare) return put(row + whole, sides);
        T lanes[side];
        put(lanes, sides);
        for (int64_t j = 0; j < left; ++j) row[whole + j] = lanes[j];
    }
};

// f of every register of these, and of as many others.
template <class T, class F, class... Others>
SPMDX_FN Sides<T> each_of(const F& f, const Sides<T>& x, const Others&... others) {
    Sides<T> found;
    SPMDX_UNROLL for (int c = 0; c < found.count; ++c) found.each[c] = f(x.each[c], others.each[c]...);
    return found;
}

template <bool logarithm, class T>
SPMDX_FN void softmax_row(const T* x, T* out, int64_t n, uint64_t rows_to_come) {
    const End end(n, rows_to_come);
    const int64_t whole = end.whole;
    const auto greater = [](auto a, auto b) { return a > b ? a : b; };
    const auto added = [](auto a, auto b) { return a + b; };

    const Sides<T> rest = end.read(x, -T(__builtin_inf()));
    Sides<T> tops = rest, more = rest;  // two, so that one need not wait for the other
    for (int64_t i = 0; i < whole; i += 2 * side) {
        tops = each_of<T>(greater, sides_of(x + i), tops);
        if (i + side < whole) more = each_of<T>(greater, sides_of(x + i + side), more);
    }
    const T top = fold(each_of<T>(greater, more, tops), greater);  // NaN is passed over: the sum will tell

    const auto power = [=](auto v) { return exp_or_zero(decltype(v)(v - top)); };
    Sides<T> sums{};
    for (int64_t i = 0; i < whole; i += side) {
        const Sides<T> powers = each_of<T>(power, sides_of(x + i));
        if (!logarithm) put(out + i, powers);
        sums = each_of<T>(added, sums, powers);
    }
    const Sides<T> last = each_of<T>(power, rest);
    if (end.left) sums = each_of<T>(added, sums, last);
    const T sum = fold(sums, added);

    if (!(top - top == 0) || sum != sum) {  // an infinity on top, or NaN somewhere
        for (int64_t i = 0; i < n; ++i) out[i] = T(__builtin_nan(""));
    } else if (logarithm) {
        const T by = log(sum);
        const auto low = [=](auto v) { return v - top - by; };
        for (int64_t i = 0; i < whole; i += side) put(out + i, each_of<T>(low, sides_of(x + i)));
        if (end.left) end.write(out, each_of<T>(low, rest));
    } else {
        const auto share = [=](auto v) { return v / sum; };
        for (int64_t i = 0; i < whole; i += side) put(out + i, each_of<T>(share, sides_of(out + i)));
        if (end.left) end.write(out, each_of<T>(share, last));
    }
}

template <class T>
inline void softmax_rows(const Softmax<T>& rows, uint64_t begin, uint64_t end) {
    for (uint64_t row = begin; row < end; ++row) {
        const uint64_t at = row * uint64_t(rows.n);
        if (rows.logarithm)
            softmax_row<true>(rows.x + at, rows.out + at, rows.n, end - row);
        else
            softmax_row<false>(rows.x + at, rows.out + at, rows.n, end - row);
    }
}

template <bool logarithm, class T>
SPMDX_FN void softmax_row_back(const T* y, const T* g, T* out, int64_t n, uint64_t rows_to_come) {
    const End end(n, rows_to_come);
    const int64_t whole = end.whole;
    const Sides<T> rest = end.read(y, T(0)), rest_g = end.read(g, T(0));
    const auto added = [](auto a, auto by, auto of) { return a + (logarithm ? by : by * of); };
    Sides<T> sums{};
    for (int64_t i = 0; i < whole; i += side)
        sums = each_of<T>(added, sums, sides_of(g + i), sides_of(y + i));
    if (end.left) sums = each_of<T>(added, sums, rest_g, rest);
    const T sum = fold(sums, [](auto a, auto b) { return a + b; });
    const auto slope = [=](auto by, auto of) {
        return logarithm ? log_softmax_slope(by, of, sum) : softmax_slope(by, of, sum);
    };
    for (int64_t i = 0; i < whole; i += side)
        put(out + i, each_of<T>(slope, sides_of(g + i), sides_of(y + i)));
    if (end.left) end.write(out, each_of<T>(slope, rest_g, rest));
}

template <class T>
inline void softmax_rows_back(const Softmax<T>& rows, uint64_t begin, uint64_t end) {
    for (uint64_t row = begin; row < end; ++row) {
        const uint64_t at = row * uint64_t(rows.n);
        const T *const y = rows.x + at, *const g = rows.g + at;
        if (rows.logarithm)
            softmax_row_back<true>(y, g, rows.out + at, rows.n, end - row);
        else
            softmax_row_back<false>(y, g, rows.out + at, rows.n, end - row);
    }
}

}  // namespace
}  // namespace spmdx
