// Products of matrices in registers, and what they read: panels of a few columns. CPU only.
#pragma once

#include "lanes.h"

namespace spmdx {

// A matrix whose rows may lie apart; elements of a row lie side by side.
template <class T>
struct Matrix {
    T* data;
    int64_t row;
};

namespace {

// The right-hand side of a product lies in panels of two registers' width: element (k, j) of `depth` rows at
// [(j / panel) depth panel + k panel + j % panel]. So a product reads it from end to end.
template <class T>
constexpr int64_t panel = 2 * lanes_of<T>;

// Rows of a product whose sums are kept in registers, beside a panel's row and an element of the left.
constexpr int tile_rows = register_bytes == 64 ? 12 : 6;

constexpr int64_t tile_depth = 32;              // of k, between two questions what is wanted next
constexpr int64_t tile_lines = tile_depth / 2;  // of the cache, that the answer may name

// Lines of memory that are wanted soon: one of them is asked for at every other k. The first cache waits for
// no more than some 16 lines at once; if these are all from far, what the sums need now waits behind them.
struct Lines {
    const char* at;
    int64_t step;

    SPMDX_METHOD void ask() {
        __builtin_prefetch(at, 0, 2);
        at += step;
    }
};

struct Nothing {
    SPMDX_METHOD Nothing operator()() const { return {}; }
    SPMDX_METHOD void ask() const {}
};

// Rows of a panel, one after another.
template <class T>
struct Panelled {
    const T* at;

    template <int Count>
    SPMDX_METHOD void next(Vector<T> (&some)[Count]) {
        SPMDX_UNROLL for (int c = 0; c < Count; ++c) some[c] = load(at + c * lanes_of<T>);
        at += panel<T>;
    }
};

// The same of a matrix that becomes a panel on the way.
template <class T>
struct Panelling {
    const T* from;
    int64_t row;
    T* to;

    template <int Count>
    SPMDX_METHOD void next(Vector<T> (&some)[Count]) {
        SPMDX_UNROLL for (int c = 0; c < Count; ++c) some[c] = load(from + c * lanes_of<T>);
        SPMDX_UNROLL for (int c = 0; c < Count; ++c) store(to + c * lanes_of<T>, some[c]);
        from += row, to += panel<T>;
    }
};

// How the left-hand side of a product lies: element (i, k) at [i row + k step], or, `beside` each other, n
// rows at [i + k n].
enum class Left { apart, beside };

// out (rows x width) = or += a b; b lies in panels, `panel_step` apart; out is row-major, `wide` apart, and
// has room for whole registers. Every sum is in the order of k. `often` says what memory is wanted next.
template <class T>
struct Product {
    const T* a;
    int64_t row, step;
    const T* b;
    int64_t panel_step;
    T* out;
    int64_t wide;

    template <int Rows, int Count, bool Add, Left Lies, class Right, class Often>
    __attribute__((noinline)) void tile(const T* from, T* to, Right right, int64_t depth,
                                        Often&& often) const {
        constexpr int w = lanes_of<T>, groups = Lies == Left::beside ? 1 : (Rows + 3) / 4;
        Vector<T> sum[Rows][Count];
        SPMDX_UNROLL for (int r = 0; r < Rows; ++r) SPMDX_UNROLL for (int c = 0; c < Count; ++c) sum[r][c] =
            Add ? load(to + r * wide + c * w) : Vector<T>{};
        // Four rows to a pointer: as many addresses as there are registers for.
        const T* left[groups];
        SPMDX_UNROLL for (int g = 0; g < groups; ++g) left[g] = from + 4 * g * row;
        int64_t once = row, thrice = 3 * row, along = step;
        // Or a compiler makes two loops, one for a step of 1, and moves sums between them.
        asm("" : "+r"(once), "+r"(thrice), "+r"(along));
        const auto add = [&](auto& soon) __attribute__((always_inline)) {
            Vector<T> some[Count];
            right.next(some);
            soon.ask();
            SPMDX_UNROLL for (int r = 0; r < Rows; ++r) {
                const int64_t apart = r % 4 == 0 ? 0 : r % 4 == 1 ? once : r % 4 == 2 ? 2 * once : thrice;
                const Vector<T> x = spread(Lies == Left::beside ? left[0][r] : left[r / 4][apart]);
                SPMDX_UNROLL for (int c = 0; c < Count; ++c) sum[r][c] = multiply_add(x, some[c], sum[r][c]);
            }
            SPMDX_UNROLL for (int g = 0; g < groups; ++g) left[g] += Lies == Left::beside ? Rows : along;
        };
        Nothing nothing;
        for (; depth >= tile_depth; depth -= tile_depth) {
            auto soon = often();
            _Pragma("GCC unroll 2") for (int k = 0; k < int(tile_lines); ++k) add(soon), add(nothing);
        }
        for (; depth > 0; --depth) add(nothing);
        SPMDX_UNROLL for (int r = 0; r < Rows; ++r) SPMDX_UNROLL for (int c = 0; c < Count; ++c)
            store(to + r * wide + c * w, sum[r][c]);
    }

    // Rows i to i + n, no more than tile_rows, of columns p panel to (p + 1) panel, or `width` if that is
    // less.
    template <bool Add>
    void part(int64_t i, int64_t n, int64_t p, int64_t width, int64_t depth) const {
        T* const to = out + i * wide + p * panel<T>;
        const Panelled<T> right{b + p * panel_step};
        if (width - p * panel<T> > lanes_of<T>)
            rows<2, Add, Left::apart>(i, n, to, right, depth, Nothing{});
        else
            rows<1, Add, Left::apart>(i, n, to, right, depth, Nothing{});
    }

    template <int Count, bool Add, Left Lies, class Right, class Often>
    void rows(int64_t i, int64_t n, T* to, Right right, int64_t depth, Often&& often) const {
        const T* const from = a + i * row;
        switch (n) {
#define SPMDX_TILE_OF(rows) \
    case rows: return tile<rows, Count, Add, Lies>(from, to, right, depth, often)
            SPMDX_TILE_OF(1);
            SPMDX_TILE_OF(2);
            SPMDX_TILE_OF(3);
            SPMDX_TILE_OF(4);
            SPMDX_TILE_OF(5);
            SPMDX_TILE_OF(6);
#if defined(__AVX512F__)
            SPMDX_TILE_OF(7);
            SPMDX_TILE_OF(8);
            SPMDX_TILE_OF(9);
            SPMDX_TILE_OF(10);
            SPMDX_TILE_OF(11);
            SPMDX_TILE_OF(12);
#endif
#undef SPMDX_TILE_OF
        }
    }
};

// Rows in strips of nearly equal numbers, for tiles: run(first, number).
template <class Run>
inline void in_strips(int64_t rows, const Run& run) {
    for (int64_t left = (rows + tile_rows - 1) / tile_rows, i = 0; left > 0; --left) {
        const int64_t n = (rows - i + left - 1) / left;
        run(i, n);
        i += n;
    }
}

template <class M>
inline M at_row(M m, int64_t row) {
    return {m.data + row * m.row, m.row};
}

// Rows copied beside each other, times `scale`, with zeros at their ends; `wide` is a number of whole
// registers.
template <class T>
inline void pack(Matrix<const T> from, int64_t rows, int64_t width, T scale, T* to, int64_t wide) {
    constexpr int64_t w = lanes_of<T>;
    const Vector<T> all = spread(scale);
    for (int64_t i = 0; i < rows; ++i) {
        const T* const source = from.data + i * from.row;
        T* const target = to + i * wide;
        int64_t j = 0;
        for (; j + w <= width; j += w) store(target + j, load(source + j) * all);
        for (; j < width; ++j) target[j] = source[j] * scale;
        for (; j % w; ++j) target[j] = 0;
        for (; j < wide; j += w) store(target + j, Vector<T>{});
    }
}

template <class T>
inline void clear(T* x, int64_t n) {  // n: whole registers
    for (int64_t i = 0; i < n; i += lanes_of<T>) store(x + i, Vector<T>{});
}

// Such rows, times `scale`, where they are wanted.
template <class T>
inline void unpack(const T* from, int64_t wide, int64_t rows, int64_t width, const T* scale, Matrix<T> to) {
    constexpr int64_t w = lanes_of<T>;
    for (int64_t i = 0; i < rows; ++i) {
        const T *const source = from + i * wide, by = scale ? scale[i] : T(1);
        T* const target = to.data + i * to.row;
        const Vector<T> all = spread(by);
        int64_t j = 0;
        for (; j + w <= width; j += w) store(target + j, load(source + j) * all);
        for (; j < width; ++j) target[j] = source[j] * by;
    }
}

// Columns in panels of `depth` rows.
template <class T>
inline void pack_panels(Matrix<const T> from, int64_t rows, int64_t width, T scale, T* to, int64_t depth) {
    for (int64_t j = 0; j < width; j += panel<T>, to += depth * panel<T>) {
        const int64_t n = width - j < panel<T> ? width - j : panel<T>;
        pack<T>({from.data + j, from.row}, rows, n, scale, to, panel<T>);
    }
}

// Four by four elements turned over, or two by two; rows are `row` and `wide` apart.
#if defined(__x86_64__)
SPMDX_FN void turn_square(const float* from, int64_t row, float* to, int64_t wide) {
    __m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + row), c = _mm_loadu_ps(from + 2 * row),
           d = _mm_loadu_ps(from + 3 * row);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(to, a), _mm_storeu_ps(to + wide, b);
    _mm_storeu_ps(to + 2 * wide, c), _mm_storeu_ps(to + 3 * wide, d);
}
SPMDX_FN void turn_square(const double* from, int64_t row, double* to, int64_t wide) {
    const __m128d a = _mm_loadu_pd(from), b = _mm_loadu_pd(from + row);
    _mm_storeu_pd(to, _mm_unpacklo_pd(a, b)), _mm_storeu_pd(to + wide, _mm_unpackhi_pd(a, b));
}
#else
template <class T>
SPMDX_FN void turn_square(const T* from, int64_t row, T* to, int64_t wide) {
    constexpr int n = 16 / int(sizeof(T));
    for (int i = 0; i < n; ++i)
        for (int j = 0; j < n; ++j) to[j * wide + i] = from[i * row + j];
}
#endif

// Panels of the matrix turned over: its rows become columns.
template <class T>
inline void turn_panels(Matrix<const T> from, int64_t rows, int64_t width, T* to) {
    constexpr int64_t w = panel<T>, n = 16 / int64_t(sizeof(T));
    for (int64_t first = 0; first < rows; first += w, to += width * w) {
        const int64_t here = rows - first < w ? rows - first : w;
        const T* const source = from.data + first * from.row;
        int64_t i = 0;
        for (; i + n <= here; i += n) {
            int64_t j = 0;
            for (; j + n <= width; j += n)
                turn_square(source + i * from.row + j, from.row, to + j * w + i, w);
            for (; j < width; ++j)
                for (int64_t r = i; r < i + n; ++r) to[j * w + r] = source[r * from.row + j];
        }
        for (; i < w; ++i)
            for (int64_t j = 0; j < width; ++j) to[j * w + i] = i < here ? source[i * from.row + j] : T(0);
    }
}

}  // namespace
}  // namespace spmdx
