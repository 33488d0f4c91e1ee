// Products of matrices whose right-hand side is narrow, by blocks that the caches hold. CPU only.
//
// Every sum is made in the order of k, from the first to the last, whichever rows and columns are asked for:
// a row has the same bits in any part of the matrix. What is read next is on its way to the second cache
// while sums are made, for operands come from memory that is far: that, and the left-hand side read where it
// lies, is what is won over a library that copies both first.
#pragma once

#include "panels.h"

namespace spmdx {

// A matrix whose element (i, j) lies at data[i row + j column]; one of the two is 1.
template <class T>
struct Strided {
    T* data;
    int64_t row, column;

    SPMDX_METHOD Strided at(int64_t i, int64_t j) const { return {data + i * row + j * column, row, column}; }
};

// out (rows x columns, row-major, `wide` apart) = or += x y, each sum of `depth` products.
template <class T>
struct Multiplied {
    Strided<const T> x, y;
    T* out;
    int64_t wide, rows, columns, depth;
    bool onto;
};

namespace {

// A part of a matrix that is wanted soon, tile_lines of its lines at a time.
struct Ahead {
    static constexpr int64_t line = 64;  // bytes

    const char* at = nullptr;
    int64_t along = 0, across = 0;          // bytes from line to line of a run, and to the next run
    int64_t count = 0, runs = 0, done = 0;  // lines of a run, runs left, lines of this one asked for

    template <class T>
    static Ahead of(Strided<const T> m, int64_t rows, int64_t columns) {
        if (m.column != 1) return of<T>({m.data, m.column, 1}, columns, rows);
        const int64_t item = sizeof(T), lines = (columns * item + line - 1) / line, row = m.row * item;
        const auto at = reinterpret_cast<const char*>(m.data);
        if (rows >= lines) return {at, row, line, rows, lines, 0};
        return {at, line, row, lines, rows, 0};
    }

    // The last lines of a long run are asked for with some before them, and so nothing behind it is.
    SPMDX_METHOD Lines next() {
        const int64_t last = count - tile_lines, first = done < last ? done : last > 0 ? last : 0;
        const Lines some{at + first * along, along};
        done += tile_lines;
        if (done >= count) done = 0, at += across, --runs;
        return some;
    }
};

// What is asked for while a tile's sums are made: memory of the next tile, and of what is read after this.
struct Meanwhile {
    Ahead out, y, x;

    SPMDX_METHOD Lines operator()() {
        if (out.runs > 0) return out.next();
        if (y.runs > 0) return y.next();
        if (x.runs > 0) return x.next();
        return {out.at, 0};
    }
};

// A range of rows, of columns or of k; `size` is 0 behind the last.
struct Range {
    int64_t first, size;

    // What comes after `done`, of all in nearly equal parts of no more than `most`.
    static Range after(int64_t done, int64_t all, int64_t most) {
        const int64_t count = (all - done + most - 1) / most;
        return {done, count ? (all - done + count - 1) / count : 0};
    }
    Range next(int64_t all, int64_t most) const { return after(first + size, all, most); }
};

// n columns of `from`, side by side in `count` registers, as rows of n: x turned over is read along k.
template <int count, class T>
inline void pack_strip(Strided<const T> from, int64_t n, int64_t depth, T* to) {
    constexpr int w = lanes_of<T>;
    const T* source = from.data;
    int64_t k = 0;
    // Whole registers: what is too much belongs to the next row, and the next row's is written over it.
    if (count * w <= from.column)
        for (; k + 1 < depth; ++k, source += from.column, to += n)
            SPMDX_UNROLL for (int c = 0; c < count; ++c) store(to + c * w, load(source + c * w));
    for (; k < depth; ++k, source += from.column, to += n) SPMDX_MEMCPY(to, source, size_t(n) * sizeof(T));
}

// Rows of x, n of them, one after another; where they lie a multiple of a page apart, the cache holds few of
// them.
template <class T>
inline void pack_rows(Strided<const T> from, int64_t n, int64_t depth, T* to) {
    for (int64_t r = 0; r < n; ++r)
        SPMDX_MEMCPY(to + r * depth, from.data + r * from.row, size_t(depth) * sizeof(T));
}

template <class T>
struct Multiplier {
    static constexpr int64_t item = sizeof(T), most_columns = 2048 / item, near = 2048 / item;
    static constexpr int64_t row_depth = 1024 / item, row_count = 8 * tile_rows;  // rows of x as they lie
    static constexpr int64_t column_depth = 512 / item,
                             column_count = 44 * tile_rows;  // columns of x turned over
    static constexpr int64_t packed_y = 2 * row_depth * most_columns, packed_x = column_depth * column_count;

    const Multiplied<T>& a;
    T *const panels, *const strips;
    const bool turned = a.x.column != 1, packs = turned || a.x.row > near;
    const int64_t most_depth = turned ? column_depth : row_depth,
                  most_rows = turned ? column_count : row_count;

    Multiplier(const Multiplied<T>& a, T* memory) : a(a), panels(memory), strips(memory + packed_y) {}

    Range first_rows() const { return Range::after(0, a.rows, most_rows); }
    Range first_depth() const { return Range::after(0, a.depth, most_depth); }

    void run() const {
        for (int64_t done = 0; done < a.columns;) {
            Range n = Range::after(done, a.columns, most_columns);
            done = rounded(n.first + n.size, panel<T>);  // whole panels, but for the last
            if (done < a.columns) n.size = done - n.first;
            columns(n, (n.size + panel<T> - 1) / panel<T>);
        }
    }

    void columns(Range n, int64_t count) const {
        if (!turned && a.depth * count * panel<T> <= packed_y) {  // sums stay in a cache until they are done
            for (Range m = first_rows(); m.size; m = m.next(a.rows, most_rows))
                for (Range k = first_depth(); k.size; k = k.next(a.depth, most_depth)) {
                    const Range after = k.next(a.depth, most_depth);
                    const Range rows = after.size ? m : m.next(a.rows, most_rows);
                    block(m, n, k, rows, after.size ? after : first_depth(),
                          panels + k.first * count * panel<T>);
                }
            return;
        }
        for (Range k = first_depth(); k.size; k = k.next(a.depth, most_depth))
            for (Range m = first_rows(); m.size; m = m.next(a.rows, most_rows)) {
                const Range after = m.next(a.rows, most_rows);
                block(m, n, k, after.size ? after : first_rows(),
                      after.size ? k : k.next(a.depth, most_depth), panels);
            }
    }

    void panel_of(Strided<const T> y, int64_t width, int64_t depth, T* to) const {
        if (y.column != 1)
            turn_panels<T>({y.data, y.column}, width, depth, to);
        else
            pack_panels<T>({y.data, y.row}, depth, width, T(1), to, depth);
    }

    void strips_of(Strided<const T> x, int64_t rows, int64_t depth) const {
        in_strips(rows, [&](int64_t i, int64_t n) {
            constexpr int most = (tile_rows + lanes_of<T> - 1) / lanes_of<T>;
            const auto pack = !turned            ? pack_rows<T>
                              : n <= lanes_of<T> ? pack_strip<1, T>
                                                 : pack_strip<most, T>;
            pack(x.at(i, 0), n, depth, strips + i * depth);
        });
    }

    // What k adds to rows m and columns n. After it come rows next_m of x, of next_k; `kept` are y's panels.
    void block(Range m, Range n, Range k, Range next_m, Range next_k, T* kept) const {
        const auto x = a.x.at(m.first, k.first), y = a.y.at(k.first, n.first);
        const int64_t width = panel<T>, count = (n.size + width - 1) / width;
        const bool once = m.size == a.rows;  // the panels are wanted for these rows alone
        Meanwhile wanted;
        if (next_m.size && next_k.size)
            wanted.x = Ahead::of<T>(a.x.at(next_m.first, next_k.first), next_m.size, next_k.size);
        if (packs) strips_of(x, m.size, k.size);
        T edge[tile_rows * panel<T>] = {};  // what is beside the columns may not slow down sums
        for (int64_t q = 0; q < count; ++q) {
            const auto columns = [&](int64_t p) {
                return n.size - p * width < width ? n.size - p * width : width;
            };
            T* const own = once ? panels : kept + q * k.size * width;
            wanted.y = {};
            const bool whole = columns(q) == width, fresh = m.first == 0, packs_y = whole && a.y.column == 1;
            if (fresh) {
                if (!packs_y) panel_of(y.at(0, q * width), columns(q), k.size, own);
                // The next panel is read soon; this one of the next k, where that comes next, was or will be.
                if (once && k.first && next_k.size)
                    wanted.y =
                        Ahead::of<T>(a.y.at(next_k.first, n.first + q * width), next_k.size, columns(q));
                else if (q + 1 < count && !(once && k.first))
                    wanted.y = Ahead::of<T>(y.at(0, (q + 1) * width), k.size, columns(q + 1));
            }
            T* const out = a.out + m.first * a.wide + n.first + q * width;
            in_strips(m.size, [&](int64_t i, int64_t rows) {
                T* const to = out + i * a.wide;
                const bool last = i + rows == m.size;
                const Strided<const T> after{last ? out + width : to + rows * a.wide, a.wide, 1};
                wanted.out = Ahead::of<T>(after, last && q + 1 == count ? 0 : rows, width);
                const T* const left = packs ? strips + i * k.size : x.data + i * x.row;
                const Product<T> tile{
                    left, packs ? k.size : x.row, 1, own, 0, whole ? to : edge, whole ? a.wide : width};
                if (!whole)
                    at_edge(tile, to, rows, columns(q), k, wanted);
                else if (fresh && packs_y && i == 0)
                    sums(tile, rows, Panelling<T>{y.at(0, q * width).data, y.row, own}, k, wanted);
                else
                    sums(tile, rows, Panelled<T>{own}, k, wanted);
            });
        }
    }

    template <class Right>
    void sums(const Product<T>& tile, int64_t rows, Right right, Range k, Meanwhile& wanted) const {
        if (turned)
            sums<Left::beside>(tile, rows, right, k, wanted);
        else
            sums<Left::apart>(tile, rows, right, k, wanted);
    }
    template <Left Lies, class Right>
    void sums(const Product<T>& tile, int64_t rows, Right right, Range k, Meanwhile& wanted) const {
        if (a.onto || k.first)
            tile.template rows<2, true, Lies>(0, rows, tile.out, right, k.size, wanted);
        else
            tile.template rows<2, false, Lies>(0, rows, tile.out, right, k.size, wanted);
    }

    // By way of memory that has room for whole registers.
    void at_edge(const Product<T>& tile, T* to, int64_t rows, int64_t width, Range k,
                 Meanwhile& wanted) const {
        const size_t bytes = size_t(width) * sizeof(T);
        if (a.onto || k.first)
            for (int64_t r = 0; r < rows; ++r) SPMDX_MEMCPY(tile.out + r * tile.wide, to + r * a.wide, bytes);
        sums(tile, rows, Panelled<T>{tile.b}, k, wanted);
        for (int64_t r = 0; r < rows; ++r) SPMDX_MEMCPY(to + r * a.wide, tile.out + r * tile.wide, bytes);
    }
};

// `memory` has room for multiply_room<T> elements, and begins where a line of the cache does.
template <class T>
constexpr int64_t multiply_room = Multiplier<T>::packed_y + Multiplier<T>::packed_x + 2 * lanes_of<T>;

template <class T>
inline void multiply(const Multiplied<T>& a, T* memory) {
    Multiplier<T>(a, memory).run();
}

}  // namespace
}  // namespace spmdx
