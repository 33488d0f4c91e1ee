// Softmax of rows or columns, or its logarithm, and their gradients, as the CPU has them: the functions of an
// element are those of the GPU, the order of sums is not. It is the same on every processor.
#pragma once

#include "activation.h"
#include "lanes.h"

namespace spmdx {

// Rows of `n` elements that lie one after another, `out` apart from the others; or where elements lie `inner`
// apart, as many columns beside each other, and such matrices one after another. With g: x is what softmax,
// or its logarithm, has given.
template <class T>
struct Softmax {
    int64_t n;
    bool logarithm;
    const T *x, *g;
    T* out;
    int64_t inner = 1;
};

// How columns are taken: of every matrix so many parts at most; and the elements of memory that a thread
// needs.
struct Parts {
    int64_t each, room;
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

// A row's sum: sums = more(sums, i) for every `side` of it from i on, and `rest` of what is left.
template <class T, class F, class G>
SPMDX_FN T in_stretches(const End& end, const F& more, const G& rest) {
    double total = 0;
    int64_t i = 0;
    do {
        const int64_t stop = end.whole - i < stretch ? end.whole : i + stretch;
        Sides<T> sums{};
        for (; i < stop; i += side) sums = more(sums, i);
        if (i == end.whole && end.left) sums = rest(sums);
        total += double(fold(sums, [](auto a, auto b) { return a + b; }));
    } while (i < end.whole);
    return T(total);
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
    const Sides<T> last = each_of<T>(power, rest);
    const T sum = in_stretches<T>(
        end,
        [&](const Sides<T>& sums, int64_t i) {
            const Sides<T> powers = each_of<T>(power, sides_of(x + i));
            if (!logarithm) put(out + i, powers);
            return each_of<T>(added, sums, powers);
        },
        [&](const Sides<T>& sums) { return each_of<T>(added, sums, last); });

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
    const T sum = in_stretches<T>(
        end,
        [&](const Sides<T>& sums, int64_t i) {
            return each_of<T>(added, sums, sides_of(g + i), sides_of(y + i));
        },
        [&](const Sides<T>& sums) { return each_of<T>(added, sums, rest_g, rest); });
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

// Columns beside each other, `side` at a time, in rows that lie `apart`. With g: the gradient.
template <class T>
struct Strip {
    static constexpr int64_t most = 1024;
    const T *x, *g;
    T* out;
    int64_t n, apart, count;

    // What lies in the columns from c on; and in those beyond the last, nothing.
    SPMDX_METHOD Sides<T> read(const T* row, int64_t c) const {
        if (count - c >= side) return sides_of(row + c);
        T lanes[side] = {};
        for (int64_t j = 0; j < count - c; ++j) lanes[j] = row[c + j];
        return sides_of(lanes);
    }
    SPMDX_METHOD void write(T* row, int64_t c, const Sides<T>& sides) const {
        if (count - c >= side) return put(row + c, sides);
        T lanes[side];
        put(lanes, sides);
        for (int64_t j = 0; j < count - c; ++j) row[c + j] = lanes[j];
    }
    // f(where the row begins, the column) for `side` columns after another of every row from `begin` to
    // `end`.
    template <class F>
    SPMDX_METHOD void each(int64_t begin, int64_t end, const F& f) const {
        for (int64_t i = begin; i < end; ++i)
            for (int64_t c = 0; c < count; c += side) f(i * apart, c);
    }
    // The sums of columns: those of `side` of them become more(these, where the row begins, the column).
    template <class F>
    SPMDX_METHOD void add(T* sums, const F& more) const {
        alignas(64) double totals[most];
        const int64_t all = rounded(count, side), rows = stretch / side;
        for (int64_t c = 0; c < all; ++c) totals[c] = 0;
        for (int64_t i = 0; i < n; i += rows) {
            for (int64_t c = 0; c < all; ++c) sums[c] = 0;
            each(i, n - i < rows ? n : i + rows,
                 [&](int64_t row, int64_t c) { put(sums + c, more(sides_of(sums + c), row, c)); });
            SPMDX_FOR (int64_t c = 0; c < all; ++c) totals[c] += double(sums[c]);
        }
        SPMDX_FOR (int64_t c = 0; c < all; ++c) sums[c] = T(totals[c]);
    }
};

template <bool logarithm, class T>
SPMDX_FN void softmax_strip(const Strip<T>& of) {
    alignas(64) T tops[Strip<T>::most], sums[Strip<T>::most];
    const int64_t all = rounded(of.count, side);
    for (int64_t c = 0; c < all; ++c) tops[c] = -T(__builtin_inf());
    of.each(0, of.n, [&](int64_t row, int64_t c) {  // NaN is passed over: the sum will tell
        const auto greater = [](auto a, auto b) { return a > b ? a : b; };
        put(tops + c, each_of<T>(greater, of.read(of.x + row, c), sides_of(tops + c)));
    });
    of.add(sums, [&](const Sides<T>& before, int64_t row, int64_t c) {
        const auto power = [](auto v, auto top) { return exp_or_zero(decltype(v)(v - top)); };
        const auto added = [](auto a, auto b) { return a + b; };
        const Sides<T> powers = each_of<T>(power, of.read(of.x + row, c), sides_of(tops + c));
        if (!logarithm) of.write(of.out + row, c, powers);
        return each_of<T>(added, before, powers);
    });
    if (logarithm)
        SPMDX_FOR (int64_t c = 0; c < all; ++c) {
            const T sum = sums[c], by = log(sum == sum ? sum : T(1));  // log knows no NaN
            sums[c] = sum == sum ? by : sum;
        }
    of.each(0, of.n, [&](int64_t row, int64_t c) {
        const auto low = [](auto v, auto top, auto by) { return v - top - by; };
        const auto share = [](auto v, auto by) { return v / by; };
        const Sides<T> by = sides_of(sums + c);
        of.write(of.out + row, c,
                 logarithm ? each_of<T>(low, of.read(of.x + row, c), sides_of(tops + c), by)
                           : each_of<T>(share, of.read(of.out + row, c), by));
    });
}

template <bool logarithm, class T>
SPMDX_FN void softmax_strip_back(const Strip<T>& of) {
    alignas(64) T sums[Strip<T>::most];
    of.add(sums, [&](const Sides<T>& before, int64_t row, int64_t c) {
        const auto added = [](auto a, auto g, auto y) { return a + (logarithm ? g : g * y); };
        return each_of<T>(added, before, of.read(of.g + row, c), of.read(of.x + row, c));
    });
    of.each(0, of.n, [&](int64_t row, int64_t c) {
        const auto slope = [](auto g, auto y, auto sum) {
            return logarithm ? log_softmax_slope(g, y, sum) : softmax_slope(g, y, sum);
        };
        of.write(of.out + row, c,
                 each_of<T>(slope, of.read(of.g + row, c), of.read(of.x + row, c), sides_of(sums + c)));
    });
}

template <class T>
inline void softmax_of(const Strip<T>& strip, bool logarithm) {
    if (strip.g)
        logarithm ? softmax_strip_back<true>(strip) : softmax_strip_back<false>(strip);
    else
        logarithm ? softmax_strip<true>(strip) : softmax_strip<false>(strip);
}

// Matrices of fewer columns than a register has: side by side in the thread's memory their rows fill some.
template <class T>
struct Beside {
    const Softmax<T>& of;

    SPMDX_METHOD bool wanted() const { return of.inner < side; }
    // Of matrices: so many that a cache near the processor holds them.
    SPMDX_METHOD int64_t most() const {
        const int64_t fits = (int64_t(1) << 16) / of.n, width = fits < side ? side : fits;
        return (width < Strip<T>::most ? width : Strip<T>::most) / of.inner;
    }
    SPMDX_METHOD int64_t width(int64_t matrices) const { return rounded(matrices * of.inner, side); }
    SPMDX_METHOD int64_t size(int64_t matrices) const { return width(matrices) * of.n; }

    SPMDX_METHOD void take(const T* from, int64_t matrices, T* room) const {
        each(matrices, [&](int64_t at, int64_t to) { room[to] = from[at]; });
    }
    SPMDX_METHOD void give(const T* room, int64_t matrices, T* to) const {
        each(matrices, [&](int64_t at, int64_t from) { to[at] = room[from]; });
    }
    template <class F>
    SPMDX_METHOD void each(int64_t matrices, const F& f) const {
        const int64_t wide = width(matrices);
        for (int64_t m = 0, at = 0; m < matrices; ++m)
            for (int64_t i = 0; i < of.n; ++i, at += of.inner)
                for (int64_t j = 0; j < of.inner; ++j) f(at + j, i * wide + m * of.inner + j);
    }
};

// How much the columns of softmax come in: by matrices, or where these are wide, `side` columns of one.
template <class T>
inline Parts softmax_parts(const Softmax<T>& of) {
    const Beside<T> beside{of};
    if (!beside.wanted()) return {(of.inner + side - 1) / side, 0};
    return {1, (of.g ? 2 : 1) * beside.size(beside.most())};
}

template <class T>
inline void softmax_columns(const Softmax<T>& of, uint64_t begin, uint64_t end, T* room) {
    const Beside<T> beside{of};
    const int64_t first = int64_t(begin), last = int64_t(end);
    if (beside.wanted()) {
        const int64_t most = beside.most();
        for (int64_t m = first; m < last; m += most) {
            const int64_t some = last - m < most ? last - m : most, at = m * of.n * of.inner;
            T* const more = of.g ? room + beside.size(some) : nullptr;
            beside.take(of.x + at, some, room);
            if (of.g) beside.take(of.g + at, some, more);
            softmax_of<T>({room, more, room, of.n, beside.width(some), some * of.inner}, of.logarithm);
            beside.give(room, some, of.out + at);
        }
        return;
    }
    const int64_t each = softmax_parts(of).each, most = Strip<T>::most / side;
    for (int64_t k = first; k < last;) {
        const int64_t m = k / each, c = k % each, left = each - c < last - k ? each - c : last - k;
        const int64_t some = left < most ? left : most, at = m * of.n * of.inner + c * side;
        const int64_t count = c + some == each ? of.inner - c * side : some * side;
        softmax_of<T>({of.x + at, of.g ? of.g + at : nullptr, of.out + at, of.n, of.inner, count},
                      of.logarithm);
        k += some;
    }
}

}  // namespace
}  // namespace spmdx
