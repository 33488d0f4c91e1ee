// Attention over blocks of rows: softmax(scale q k') v for heads that share k and v, and its gradients.
// Scores are made for a block of rows, against all columns that these rows see, and made again for the
// gradient (Dao, Fu, Ermon, Rudra and Re, "FlashAttention", 2022), so that memory is linear in the sequence.
// The order of addition is fixed.
#pragma once

#include "fill.h"
#include "panels.h"

namespace spmdx {

// Which weights dropout keeps, by their numbers in the whole array of weights, [heads, length, columns].
struct Kept {
    Key key;
    float chance;
    double scale;         // of what is kept
    const int64_t* rows;  // the numbers of the rows that are here
    int64_t length;
};

// One head of queries, and what it attends to. Null: no mask; no limits; a gradient that is not asked for.
template <class T>
struct Head {
    Matrix<const T> q, g, out;  // [rows, inner], [rows, outer], [rows, outer]
    Matrix<T> result;           // [rows, outer] forwards, [rows, inner] backwards: added to nothing
    Matrix<const uint8_t> mask;
    int64_t mask_step;
    int64_t number;  // in the whole array of weights, where some are dropped
};

template <class T>
struct Attention {
    int64_t rows, columns, inner, outer;
    T scale;
    const int64_t* limits;  // a row sees columns up to this one
    bool masked;
    const Kept* kept;                // null: every weight
    Matrix<const T> k, v;            // [columns, inner], [columns, outer]
    Matrix<T> k_slope, v_slope;      // added up over heads and rows; or null
    Matrix<const T> next_k, next_v;  // what comes after k and v, to be fetched by then; or null
};

namespace {

// A block's scores stay in a cache near the processor. The gradient takes its columns by blocks too.
constexpr int64_t attention_rows = 48, attention_columns = 96;

// Memory of one thread: 64-byte aligned, as every matrix in it.
template <class T>
struct Workspace {
    int64_t wide, inner, outer, size;  // of scores, and of what has the width of k and v
    int64_t depth;                     // of panels whose rows are columns of scores
    T *k, *k_turned, *v, *v_turned;    // in panels
    T *k_slope, *v_slope;
    T *q, *g, *q_panels, *g_panels;  // of one block of rows
    T *scores, *slopes, *some, *out, *sums, *alongs;
    uint8_t* kept;  // as wide as scores

    Workspace(const Attention<T>& a, T* memory)
        : wide(rounded(a.columns, attention_columns) +
               side),  // rows 4096 bytes apart would share cache lines
          inner(rounded(a.inner, panel<T>)),
          outer(rounded(a.outer, panel<T>)),
          size(0),
          depth(a.columns) {
        const auto next = [&](int64_t n) {
            T* const here = memory + size;
            size += rounded(n, side);
            return here;
        };
        const int64_t columns = rounded(a.columns, panel<T>);
        k = next(depth * inner), k_turned = next(columns * a.inner);
        v = next(depth * outer), v_turned = next(columns * a.outer);
        k_slope = next(depth * inner), v_slope = next(depth * outer);
        q = next(attention_rows * inner), g = next(attention_rows * outer);
        q_panels = inner == panel<T> ? q : next(attention_rows * inner);
        g_panels = outer == panel<T> ? g : next(attention_rows * outer);
        scores = next(attention_rows * wide), slopes = next(attention_rows * (attention_columns + side));
        some = next(attention_rows * (inner > outer ? inner : outer));
        out = next(outer), sums = next(attention_rows), alongs = next(attention_rows);
        kept = reinterpret_cast<uint8_t*>(next(a.kept ? attention_rows * wide / int64_t(sizeof(T)) + 1 : 0));
    }
    static int64_t need(const Attention<T>& a) { return Workspace(a, nullptr).size; }
};

// The greatest score of a row of which `seen` are seen; those that are not become -infinity, to the next
// `side`.
template <class T>
inline T greatest(T* scores, int64_t seen, const uint8_t* mask, int64_t step) {
    constexpr T lowest = -T(__builtin_inf());
    if (mask && step == 1)
        SPMDX_FOR (int64_t j = 0; j < seen; ++j) scores[j] = mask[j] ? scores[j] : lowest;
    else if (mask)
        for (int64_t j = 0; j < seen; ++j) scores[j] = mask[j * step] ? scores[j] : lowest;
    if (const int64_t left = seen % side) {
        Sides<T> last;
        SPMDX_MEMCPY(last.each, scores + seen - left, sizeof(last.each));
        SPMDX_UNROLL for (int c = 0; c < last.count; ++c) {
            const Vector<T> number = load(lane_numbers<T> + c * last.w);
            last.each[c] = number < spread(T(left)) ? last.each[c] : spread(lowest);
        }
        SPMDX_MEMCPY(scores + seen - left, last.each, sizeof(last.each));
    }
    Sides<T> top, more;  // two, so that one need not wait for the other
    for (int c = 0; c < top.count; ++c) top.each[c] = more.each[c] = spread(lowest);
    const auto raise = [&](Sides<T>& to, int64_t j) {
        SPMDX_UNROLL for (int c = 0; c < top.count; ++c) {
            const Vector<T> next = load(scores + j + c * top.w);
            to.each[c] = next > to.each[c] ? next : to.each[c];
        }
    };
    for (int64_t j = 0; j < seen; j += 2 * side) {
        raise(top, j);
        if (j + side < seen) raise(more, j + side);
    }
    for (int c = 0; c < top.count; ++c) top.each[c] = more.each[c] > top.each[c] ? more.each[c] : top.each[c];
    return fold(top, [](auto a, auto b) { return a > b ? a : b; });
}

// exp(score - top), and zeros up to `wide`, a number of whole registers; returns the sum.
template <class T>
inline T powers(T* scores, T top, int64_t seen, int64_t wide) {
    const Vector<T> all = spread(top);
    Sides<T> sum{};
    int64_t j = 0;
    for (; j < seen; j += side) SPMDX_UNROLL for (int c = 0; c < sum.count; ++c) {
            const Vector<T> next = power(load(scores + j + c * sum.w) - all);
            store(scores + j + c * sum.w, next);
            sum.each[c] += next;
        }
    for (; j < wide; j += sum.w) store(scores + j, Vector<T>{});
    return fold(sum, [](auto a, auto b) { return a + b; });
}

// The sum of x y; of both there are whole registers.
template <class T>
inline T dot(const T* x, const T* y, int64_t n) {
    Sides<T> sum{};
    for (int64_t j = 0; j < n; j += sum.w) {
        Vector<T>& to = sum.each[j / sum.w % sum.count];
        to = multiply_add(load(x + j), load(y + j), to);
    }
    return fold(sum, [](auto a, auto b) { return a + b; });
}

// Row `row` of what will be read or written soon, for the cache: its rows lie too far apart for the processor
// to guess. Past the end that does no harm.
template <class M>
inline void fetch_row(const M& m, int64_t row, int64_t width) {
    if (!m.data) return;
    const char *at = reinterpret_cast<const char*>(m.data + row * m.row), *const end =
                                                                              at + width * sizeof(*m.data);
    for (; at < end; at += 64) __builtin_prefetch(at, 0, 2);
}

// The part of a head that one block of rows works on, and the columns that it sees.
template <class T>
struct Rows {
    int64_t first, count, seen = 0;
    // Of the columns, how many each row sees, and how many those up to it.
    int64_t sees[attention_rows], most[attention_rows];

    Rows(const Attention<T>& a, int64_t start) : first(start) {
        count = a.rows - first < attention_rows ? a.rows - first : attention_rows;
        for (int64_t i = 0; i < count; ++i) {
            const int64_t all = a.limits ? a.limits[first + i] + 1 : a.columns;
            sees[i] = all < 0 ? 0 : all > a.columns ? a.columns : all;
            most[i] = seen = seen > sees[i] ? seen : sees[i];
        }
    }
    // What the next block of rows reads and writes, a row at a time; and of the k and v to come, their part.
    void fetch(const Attention<T>& a, const Head<T>& head, int64_t row) const {
        const int64_t next = row + attention_rows;
        if (next < a.rows) {
            fetch_row(head.q, next, a.inner), fetch_row(head.g, next, a.outer);
            fetch_row(head.out, next, a.outer), fetch_row(head.result, next, head.g.data ? a.inner : a.outer);
        }
        for (int64_t j = row * a.columns / a.rows; j < (row + 1) * a.columns / a.rows; ++j)
            fetch_row(a.next_k, j, a.inner), fetch_row(a.next_v, j, a.outer),
                fetch_row(a.k_slope, j, a.inner), fetch_row(a.v_slope, j, a.outer);
    }
    // out = a product whose columns are those of the scores: `from` to `to`, of rows from `start`, that they
    // see.
    void across(const Product<T>& product, int64_t start, int64_t from, int64_t to, int64_t depth) const {
        for (int64_t p = 0; from + p * panel<T> < to; ++p)
            in_strips(count - start, [&](int64_t i, int64_t n) {
                const int64_t all = most[start + i + n - 1], width = (all < to ? all : to) - from;
                if (width > p * panel<T>) product.template part<false>(i, n, p, width, depth);
            });
    }
    // out = or += a product over such columns.
    template <bool Add>
    void along(const Product<T>& product, int64_t start, int64_t from, int64_t to, int64_t width) const {
        for (int64_t p = 0; p * panel<T> < width; ++p)
            in_strips(count - start, [&](int64_t i, int64_t n) {
                const int64_t all = most[start + i + n - 1], depth = (all < to ? all : to) - from;
                product.template part<Add>(i, n, p, width, depth > 0 ? depth : 0);
            });
    }
    // out += x' y, of columns `from` to `to` of x: without the rows at the start of the block that do not see
    // them.
    void add_turned(const T* x, int64_t wide, int64_t from, int64_t to, const T* y, int64_t width,
                    Matrix<T> out) const {
        in_strips(to - from, [&](int64_t j, int64_t n) {
            int64_t start = 0;
            while (start < count && sees[start] <= from + j) ++start;
            const Product<T> product{
                x + start * wide,          1,      wide, y + start * panel<T>, attention_rows * panel<T>,
                out.data + from * out.row, out.row};
            for (int64_t p = 0; p * panel<T> < width; ++p)
                product.template part<true>(j, n, p, width, count - start);
        });
    }
};

// Of a block of rows, which weights are kept. The gradient draws them again.
template <class T>
inline void draw_kept(const Attention<T>& a, const Head<T>& head, const Rows<T>& rows,
                      const Workspace<T>& w) {
    Filler<Bernoulli> filler({a.kept->chance}, a.kept->key);
    for (int64_t i = 0; i < rows.count; ++i) {
        const int64_t row = head.number * a.kept->length + a.kept->rows[rows.first + i];
        if (rows.sees[i]) filler.run(uint64_t(row * a.columns), uint64_t(rows.sees[i]), w.kept + i * w.wide);
    }
    filler.flush();
}

// What weights are multiplied by when others are dropped.
template <class T>
inline T scale_of(const Attention<T>& a) {
    return a.kept ? T(a.kept->scale) : T(1);
}

// exp(score - greatest) of a block of rows into scores, and 1 / the sum of each, times the scale of what is
// kept, into sums. What is dropped becomes 0; for the gradient, which needs it too, it becomes negative.
template <bool Back, class T>
inline void weigh(const Attention<T>& a, const Head<T>& head, const Rows<T>& rows, const Workspace<T>& w) {
    pack(at_row(head.q, rows.first), rows.count, a.inner, a.scale, w.q, w.inner);
    rows.across({w.q, w.inner, 1, w.k_turned, a.inner * panel<T>, w.scores, w.wide}, 0, 0, rows.seen,
                a.inner);
    for (int64_t i = 0; i < rows.count; ++i) {
        const int64_t row = rows.first + i;
        const uint8_t* const mask = a.masked ? head.mask.data + row * head.mask.row : nullptr;
        w.sums[i] = greatest(w.scores + i * w.wide, rows.sees[i], mask, head.mask_step);
        rows.fetch(a, head, row);
    }
    if (a.kept) draw_kept(a, head, rows, w);
    const T scale = scale_of(a);
    for (int64_t i = 0; i < rows.count; ++i) {
        const T top = w.sums[i] == -T(__builtin_inf()) ? T(0) : w.sums[i];
        T* const scores = w.scores + i * w.wide;
        const T sum = powers(scores, top, rows.sees[i], rounded(rows.seen, panel<T>));
        w.sums[i] = sum == 0 ? T(1) : scale / sum;
        if (!a.kept) continue;
        const uint8_t* const kept = w.kept + i * w.wide;
        SPMDX_FOR (int64_t j = 0; j < rows.sees[i]; ++j)
            scores[j] = kept[j] ? scores[j] : Back ? -scores[j] : T(0);
    }
}

template <class T>
inline void attend(const Attention<T>& a, const Head<T>* heads, int64_t count, T* memory) {
    const Workspace<T> w(a, memory);
    turn_panels(a.k, a.columns, a.inner, w.k_turned);
    pack_panels(a.v, a.columns, a.outer, T(1), w.v, w.depth);
    for (const Head<T>* head = heads; head < heads + count; ++head)
        for (int64_t start = 0; start < a.rows; start += attention_rows) {
            const Rows<T> rows(a, start);
            weigh<false>(a, *head, rows, w);
            rows.template along<false>({w.scores, w.wide, 1, w.v, w.depth * panel<T>, w.some, w.outer}, 0, 0,
                                       rows.seen, a.outer);
            unpack(w.some, w.outer, rows.count, a.outer, w.sums, at_row(head->result, start));
        }
}

// The gradients with respect to q, into result, and k and v, added to k_slope and v_slope. What a row's
// powers are to be divided by goes into its g.
template <class T>
inline void attend_back(const Attention<T>& a, const Head<T>* heads, int64_t count, T* memory) {
    const Workspace<T> w(a, memory);
    const bool columns = a.k_slope.data;
    const T whole = 1 / scale_of(a);  // a row's g has the scale of what is kept in it
    const int64_t wide = attention_columns + side;
    turn_panels(a.k, a.columns, a.inner, w.k_turned);
    turn_panels(a.v, a.columns, a.outer, w.v_turned);
    pack_panels(a.k, a.columns, a.inner, a.scale, w.k, w.depth);
    if (columns) clear(w.k_slope, w.depth * w.inner), clear(w.v_slope, w.depth * w.outer);
    for (const Head<T>* head = heads; head < heads + count; ++head)
        for (int64_t start = 0; start < a.rows; start += attention_rows) {
            const Rows<T> rows(a, start);
            weigh<true>(a, *head, rows, w);
            for (int64_t i = 0; i < rows.count; ++i) {
                const Matrix<const T> g = at_row(head->g, start + i);
                pack(g, 1, a.outer, w.sums[i], w.g + i * w.outer, w.outer);
                pack(at_row(head->out, start + i), 1, a.outer, T(1), w.out, w.outer);
                w.alongs[i] = dot(w.g + i * w.outer, w.out, w.outer) * whole;
            }
            if (columns && w.q != w.q_panels)
                pack_panels<T>({w.q, w.inner}, rows.count, w.inner, T(1), w.q_panels, attention_rows);
            if (columns && w.g != w.g_panels)
                pack_panels<T>({w.g, w.outer}, rows.count, w.outer, T(1), w.g_panels, attention_rows);
            clear(w.some, rows.count * w.inner);
            int64_t blind = 0;  // rows at the start that see no column from here on
            for (int64_t from = 0; from < rows.seen; from += attention_columns) {
                const int64_t next = from + attention_columns, to = next < rows.seen ? next : rows.seen;
                while (rows.sees[blind] <= from) ++blind;
                T* const slopes = w.slopes + blind * wide;
                rows.across({w.g + blind * w.outer, w.outer, 1, w.v_turned + from * a.outer,
                             a.outer * panel<T>, slopes, wide},
                            blind, from, to, a.outer);
                for (int64_t i = blind; i < rows.count; ++i) {
                    const T along = w.alongs[i];
                    T *const p = w.scores + i * w.wide + from, *const s = w.slopes + i * wide;
                    const int64_t own = (rows.sees[i] < to ? rows.sees[i] : to) - from;
                    const int64_t end = own > 0 ? padded<T>(own) : 0;
                    if (a.kept)
                        SPMDX_FOR (int64_t j = 0; j < end; ++j) {
                            const T x = p[j];
                            s[j] = x > 0 ? x * (s[j] - along) : x * along;
                            p[j] = x < 0 ? T(0) : x;
                        }
                    else
                        SPMDX_FOR (int64_t j = 0; j < end; ++j) s[j] = p[j] * (s[j] - along);
                    for (int64_t j = end; j < to - from; j += lanes_of<T>) store(s + j, Vector<T>{});
                }
                if (head->result.data)
                    rows.template along<true>({slopes, wide, 1, w.k + from * panel<T>, w.depth * panel<T>,
                                               w.some + blind * w.inner, w.inner},
                                              blind, from, to, a.inner);
                if (!columns) continue;
                rows.add_turned(w.slopes, wide, from, to, w.q_panels, a.inner,
                                {w.k_slope, w.inner});  // the scale is in q
                rows.add_turned(w.scores + from, w.wide, from, to, w.g_panels, a.outer, {w.v_slope, w.outer});
            }
            if (head->result.data)
                unpack<T>(w.some, w.inner, rows.count, a.inner, nullptr, at_row(head->result, start));
        }
    if (!columns) return;
    unpack<T>(w.k_slope, w.inner, a.columns, a.inner, nullptr, a.k_slope);
    unpack<T>(w.v_slope, w.outer, a.columns, a.outer, nullptr, a.v_slope);
}

}  // namespace
}  // namespace spmdx
