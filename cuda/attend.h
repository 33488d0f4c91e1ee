// Attention over blocks of rows: softmax(scale q k') v for heads that share k and v, and its gradients.
// Scores are made for a block of rows, against all columns that these rows see, and made again for the
// gradient (Dao, Fu, Ermon, Rudra and Re, "FlashAttention", 2022), so that memory is linear in the sequence.
// The order of addition is fixed.
#pragma once

#include "lanes.h"
#include "scalar.h"

namespace spmdx {

// A matrix whose rows may lie apart; elements of a row lie side by side.
template <class T>
struct Matrix {
    T* data;
    int64_t row;
};

// One head of queries, and what it attends to. Null: no mask; no limits; a gradient that is not asked for.
template <class T>
struct Head {
    Matrix<const T> q, g, out;  // [rows, inner], [rows, outer], [rows, outer]
    Matrix<T> result;           // [rows, outer] forwards, [rows, inner] backwards: added to nothing
    Matrix<const uint8_t> mask;
    int64_t mask_step;
};

template <class T>
struct Attention {
    int64_t rows, columns, inner, outer;
    T scale;
    const int64_t* limits;  // a row sees columns up to this one
    bool masked;
    Matrix<const T> k, v;        // [columns, inner], [columns, outer]
    Matrix<T> k_slope, v_slope;  // added up over heads and rows, padded to whole registers
};

namespace {

constexpr int64_t attention_rows = 48, strip_rows = 6;

// Memory of one thread, for blocks of `rows` rows. Every matrix has rows of whole registers.
template <class T>
struct Workspace {
    int64_t columns, inner, outer;
    T *k, *k_turned, *v, *v_turned, *q, *g, *scores, *slopes, *sums, *some;

    static int64_t size(const Attention<T>& a) {
        const int64_t c = padded<T>(a.columns), d = padded<T>(a.inner), e = padded<T>(a.outer);
        const int64_t most = d > e ? d : e;
        return c * 2 * (d + e) + attention_rows * (d + e + 2 * c + most + 2);
    }
    Workspace(const Attention<T>& a, T* memory)
        : columns(padded<T>(a.columns)), inner(padded<T>(a.inner)), outer(padded<T>(a.outer)) {
        const auto next = [&](int64_t n) {
            T* const here = memory;
            memory += n;
            return here;
        };
        k = next(columns * inner), k_turned = next(columns * inner);
        v = next(columns * outer), v_turned = next(columns * outer);
        q = next(attention_rows * inner), g = next(attention_rows * outer);
        scores = next(attention_rows * columns), slopes = next(attention_rows * columns);
        some = next(attention_rows * (inner > outer ? inner : outer)), sums = next(2 * attention_rows);
    }
};

// Rows copied beside each other with zeros at their ends, times `scale`.
template <class T>
inline void pack(Matrix<const T> from, int64_t rows, int64_t width, T scale, T* to, int64_t wide) {
    for (int64_t i = 0; i < rows; ++i) {
        const T* const source = from.data + i * from.row;
        T* const target = to + i * wide;
        SPMDX_FOR (int64_t j = 0; j < width; ++j) target[j] = source[j] * scale;
        for (int64_t j = width; j < wide; ++j) target[j] = 0;
    }
}
template <class T>
inline void turn_over(Matrix<const T> from, int64_t rows, int64_t width, T* to, int64_t wide) {
    for (int64_t j = 0; j < width; ++j) {
        for (int64_t i = 0; i < rows; ++i) to[j * wide + i] = from.data[i * from.row + j];
        for (int64_t i = rows; i < wide; ++i) to[j * wide + i] = 0;
    }
}

template <class T>
SPMDX_FN T greatest(const T* x, int64_t n) {
    constexpr int w = lanes_of<T>;
    const T lowest = -T(__builtin_inf());
    Vector<T> top = spread(lowest);
    int64_t j = 0;
    for (; j + w <= n; j += w) {
        const Vector<T> next = load(x + j);
        top = next > top ? next : top;
    }
    T most = lowest;
    for (int l = 0; l < w; ++l) most = top[l] > most ? top[l] : most;
    for (; j < n; ++j) most = x[j] > most ? x[j] : most;
    return most;
}

template <class T>
SPMDX_FN T total(const T* x, int64_t n) {  // n: whole registers
    constexpr int w = lanes_of<T>;
    Vector<T> sum{};
    for (int64_t j = 0; j < n; j += w) sum += load(x + j);
    T all = 0;
    for (int l = 0; l < w; ++l) all += sum[l];
    return all;
}

// exp(score - greatest) of a row of which `seen` are seen; zeros up to `wide`. Returns the sum, or 1 for 0.
template <class T>
inline T powers(T* scores, int64_t seen, int64_t wide, const uint8_t* mask, int64_t step) {
    if (mask)
        SPMDX_FOR (int64_t j = 0; j < seen; ++j) scores[j] = mask[j * step] ? scores[j] : -T(__builtin_inf());
    T top = greatest(scores, seen);
    if (top == -T(__builtin_inf())) top = 0;
    SPMDX_FOR (int64_t j = 0; j < seen; ++j) scores[j] = exp(scores[j] - top);
    for (int64_t j = seen; j < wide; ++j) scores[j] = 0;
    const T sum = total(scores, wide);
    return sum == 0 ? T(1) : sum;
}

// The part of a head that one block of rows works on, and the columns that it sees.
template <class T>
struct Rows {
    int64_t first, count, seen, wide;

    Rows(const Attention<T>& a, int64_t start) : first(start), seen(a.columns) {
        count = a.rows - first < attention_rows ? a.rows - first : attention_rows;
        if (a.limits) {
            seen = 0;
            for (int64_t i = first; i < first + count; ++i) seen = seen > sees(a, i) ? seen : sees(a, i);
        }
        wide = padded<T>(seen);
    }
    static int64_t sees(const Attention<T>& a, int64_t row) {
        const int64_t all = a.limits ? a.limits[row] + 1 : a.columns;
        return all < 0 ? 0 : all > a.columns ? a.columns : all;
    }
    // Rows of products in strips: run(i, n, columns that rows i to i + n of the block see).
    template <class Run>
    void strips(const Attention<T>& a, const Run& run) const {
        for (int64_t i = 0; i < count; i += strip_rows) {
            const int64_t n = count - i < strip_rows ? count - i : strip_rows;
            int64_t most = a.limits ? 0 : seen;
            for (int64_t r = i; a.limits && r < i + n; ++r)
                most = most > sees(a, first + r) ? most : sees(a, first + r);
            run(i, n, most);
        }
    }
    // out += x' y, of strips of columns: without the rows at the start of the block that do not see them.
    void add_turned(const Attention<T>& a, const T* x, int64_t wide_x, const T* y, int64_t wide_y,
                    Matrix<T> out) const {
        for (int64_t j = 0, start = 0; j < seen; j += strip_rows) {
            while (start < count && sees(a, first + start) <= j) ++start;
            Product<T>{x + start * wide_x + j, 1,       wide_x,       y + start * wide_y, wide_y,
                       out.data + j * out.row, out.row, count - start}
                .template run<true>(seen - j < strip_rows ? seen - j : strip_rows, wide_y);
        }
    }
};

template <class T>
inline Matrix<const T> at_row(Matrix<const T> m, int64_t row) {
    return {m.data + row * m.row, m.row};
}

// exp(score - greatest) of a block of rows into scores, and a sum for each into sums.
template <class T>
inline void weigh(const Attention<T>& a, const Head<T>& head, const Rows<T>& rows, const Workspace<T>& w) {
    pack(at_row(head.q, rows.first), rows.count, a.inner, a.scale, w.q, w.inner);
    rows.strips(a, [&](int64_t i, int64_t n, int64_t seen) {
        Product<T>{w.q + i * w.inner,        w.inner,   1,      w.k_turned, w.columns,
                   w.scores + i * w.columns, w.columns, a.inner}
            .template run<false>(n, padded<T>(seen));
    });
    for (int64_t i = 0; i < rows.count; ++i) {
        const int64_t row = rows.first + i;
        const uint8_t* const mask = a.masked ? head.mask.data + row * head.mask.row : nullptr;
        w.sums[i] = powers(w.scores + i * w.columns, Rows<T>::sees(a, row), rows.wide, mask, head.mask_step);
    }
}

template <class T>
inline void attend(const Attention<T>& a, const Head<T>* heads, int64_t count, T* memory) {
    const Workspace<T> w(a, memory);
    turn_over(a.k, a.columns, a.inner, w.k_turned, w.columns);
    pack(a.v, a.columns, a.outer, T(1), w.v, w.outer);
    for (const Head<T>* head = heads; head < heads + count; ++head)
        for (int64_t start = 0; start < a.rows; start += attention_rows) {
            const Rows<T> rows(a, start);
            weigh(a, *head, rows, w);
            rows.strips(a, [&](int64_t i, int64_t n, int64_t seen) {
                Product<T>{w.scores + i * w.columns, w.columns, 1,   w.v, w.outer,
                           w.some + i * w.outer,     w.outer,   seen}
                    .template run<false>(n, w.outer);
            });
            for (int64_t i = 0; i < rows.count; ++i) {
                T* const out = head->result.data + (start + i) * head->result.row;
                const T part = 1 / w.sums[i];
                SPMDX_FOR (int64_t j = 0; j < a.outer; ++j) out[j] = w.some[i * w.outer + j] * part;
            }
        }
}

// The gradients with respect to q, into result, and k and v, added to k_slope and v_slope.
template <class T>
inline void attend_back(const Attention<T>& a, const Head<T>* heads, int64_t count, T* memory) {
    const Workspace<T> w(a, memory);
    turn_over(a.k, a.columns, a.inner, w.k_turned, w.columns);
    turn_over(a.v, a.columns, a.outer, w.v_turned, w.columns);
    pack(a.k, a.columns, a.inner, a.scale, w.k, w.inner);
    for (const Head<T>* head = heads; head < heads + count; ++head)
        for (int64_t start = 0; start < a.rows; start += attention_rows) {
            const Rows<T> rows(a, start);
            weigh(a, *head, rows, w);
            pack(at_row(head->g, start), rows.count, a.outer, T(1), w.g, w.outer);
            rows.strips(a, [&](int64_t i, int64_t n, int64_t seen) {
                Product<T>{w.g + i * w.outer,        w.outer,   1,      w.v_turned, w.columns,
                           w.slopes + i * w.columns, w.columns, a.outer}
                    .template run<false>(n, padded<T>(seen));
            });
            for (int64_t i = 0; i < rows.count; ++i) {
                const T* const out = head->out.data + (start + i) * head->out.row;
                T along = 0;
                for (int64_t j = 0; j < a.outer; ++j) along += w.g[i * w.outer + j] * out[j];
                T *const p = w.scores + i * w.columns, *const s = w.slopes + i * w.columns;
                const T part = 1 / w.sums[i];
                const int64_t seen = padded<T>(Rows<T>::sees(a, start + i));
                SPMDX_FOR (int64_t j = 0; j < seen; ++j) {
                    p[j] *= part;
                    s[j] = p[j] * (s[j] - along);
                }
                for (int64_t j = seen; j < rows.wide; ++j) s[j] = 0;
            }
            if (head->result.data) {
                rows.strips(a, [&](int64_t i, int64_t n, int64_t seen) {
                    Product<T>{w.slopes + i * w.columns, w.columns, 1,   w.k, w.inner,
                               w.some + i * w.inner,     w.inner,   seen}
                        .template run<false>(n, w.inner);
                });
                for (int64_t i = 0; i < rows.count; ++i)
                    SPMDX_FOR (int64_t j = 0; j < a.inner; ++j)
                        head->result.data[(start + i) * head->result.row + j] = w.some[i * w.inner + j];
            }
            if (a.k_slope.data)  // w.q has the scale in it
                rows.add_turned(a, w.slopes, w.columns, w.q, w.inner, a.k_slope);
            if (a.v_slope.data) rows.add_turned(a, w.scores, w.columns, w.g, w.outer, a.v_slope);
        }
}

}  // namespace
}  // namespace spmdx
