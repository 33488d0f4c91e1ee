// What stands between two layers (residual.h), as a GPU has it: dropout, the sum with the stream of residuals
// and its norm, a row at a time, and the gradients. The stream is the CPU's to the bit; the norm is norm.h's.
#include "norm.h"
#include "places.h"

namespace spmdx {
namespace {

// Dropout of a block: `words` of the key lie on the device, and are null where nothing is dropped.
struct Dropping {
    const uint32_t* words;
    const uint64_t* replay;
    Place place;
    double scale;
    float kept;
    int threefry;

    SPMDX_METHOD Key key() const { return words ? of_replay(key_in(words, threefry), replay) : Key(); }
    SPMDX_METHOD uint64_t first(int64_t row, int64_t n) const {
        return words ? index_of(place, uint64_t(row * n)) : 0;
    }
};

// Which of the elements from a global index on are kept, a bit for each; an index is a multiple of `pack`.
template <int pack>
SPMDX_FN uint32_t kept_of(float kept, Key key, uint64_t index) {
    constexpr int each = pack < 4 ? pack : 4;  // of one block of the generator
    const int from = int(index % 4);           // 0 where these are four
    uint32_t bits = 0;
    SPMDX_ROLLED for (int j = 0; j < pack / each; ++j) {
        uint32_t words[4], all = 0;
        lanes<Bernoulli>(key, index / 4 + uint64_t(j), words);
        SPMDX_UNROLL for (int e = 0; e < 4; ++e) all |= uint32_t(unit(words[e]) < kept) << e;
        bits |= (each < 4 ? all >> from & ((1u << each) - 1) : all) << (4 * j);
    }
    return bits;
}

// The same for the packs of a row that are a thread's, drawn before they are asked for; or each when it is.
template <int pack, int held>
struct Kept {
    const Dropping& drop;
    const Key key;
    const uint64_t first;
    uint32_t bits = 0;

    SPMDX_METHOD Kept(const Dropping& of, Key with, int64_t row, int64_t n)
        : drop(of), key(with), first(of.first(row, n)) {
        static_assert(held * pack <= 32, "a bit for each element");
        if (held == 0 || !drop.words) return;
        int64_t i = int64_t(threadIdx.x) * pack;
        SPMDX_ROLLED for (int h = 0; h < held && i < n; ++h, i += int64_t(blockDim.x) * pack) bits |=
            kept_of<pack>(drop.kept, key, first + uint64_t(i)) << (h * pack);
    }
    template <class T>
    SPMDX_METHOD void apply(Pack<T, pack>& to, int64_t i, int at) const {
        const uint32_t own = held ? bits >> at : kept_of<pack>(drop.kept, key, first + uint64_t(i));
        const Computed<T> scale = Computed<T>(drop.scale);
        SPMDX_UNROLL for (int v = 0; v < pack; ++v) to.v[v] = dropped(to.v[v], scale, own >> v & 1u);
    }
};

// y += x, each sum rounded to the type.
template <class T, int pack>
SPMDX_FN void add_to(Pack<T, pack>& y, const T* x) {
    const Pack<T, pack> more = load<pack>(x);
    SPMDX_UNROLL for (int v = 0; v < pack; ++v) y.v[v] = narrow_to(widen(more.v[v]) + widen(y.v[v]), T());
}

template <class T, int pack, int held, class C>
SPMDX_FN void add_norm(int64_t n, int64_t rows, C eps, bool centered, const Dropping& drop, const T* x,
                       const T* added, const T* residual, const T* scale, const T* bias, T* stream, T* out) {
    const Key key = drop.key();
    over_rows(rows, [&](int64_t row) {
        const int64_t start = row * n;
        const Kept<pack, held> kept(drop, key, row, n);
        Row<T, pack, held> in;
        in.data = stream + start;  // of what this thread writes here, it reads its own
        over<pack, held>(n, [&](int64_t i, int at) {
            Pack<T, pack> sum = load<pack>(x + start + i);
            if (added) add_to(sum, added + i);
            if (drop.words) kept.apply(sum, i, at);
            add_to(sum, residual + start + i);
            store<pack>(stream + start + i, sum);
            if constexpr (held > 0)
                SPMDX_UNROLL for (int v = 0; v < pack; ++v) in.value[at + v] = widen(sum.v[v]);
        });
        norm_row(in, n, eps, centered, scale, bias, out + start);
    });
}

// With respect to the residual, and to x where something is dropped; `moments` (or null): of every row.
template <class T, int pack, int held, class C>
SPMDX_FN void add_norm_back(int64_t n, int64_t rows, C eps, bool centered, const Dropping& drop,
                            const T* stream, const T* scale, const T* g_stream, const T* g, T* out, T* to_x,
                            C* moments) {
    const Key key = drop.key();
    over_rows(rows, [&](int64_t row) {
        const int64_t start = row * n;
        const Kept<pack, held> kept(drop, key, row, n);
        const auto put = [&](int64_t i, int at, Pack<T, pack> slope) {
            if (g_stream) add_to(slope, g_stream + start + i);
            store<pack>(out + start + i, slope);
            if (!drop.words) return;
            kept.apply(slope, i, at);
            store<pack>(to_x + start + i, slope);
        };
        const Moments<C> m =
            norm_row_back<T, pack, held>(stream + start, g + start, n, eps, centered, scale, put);
        if (moments && threadIdx.x == 0) moments[2 * row] = m.mean, moments[2 * row + 1] = m.root;
    });
}

}  // namespace
}  // namespace spmdx

using namespace spmdx;

// For the type that the compiler is told, SPMDX_TYPE.
using T = SPMDX_TYPE;
using C = Computed<T>;

#define SPMDX_ADD_NORM(way, pack, held)                                                                     \
    extern "C" __global__ void __launch_bounds__(512) add_norm_##way(                                       \
        int64_t n, int64_t rows, double eps, int centered, Dropping drop, const T* x, const T* added,       \
        const T* residual, const T* scale, const T* bias, T* stream, T* out) {                              \
        add_norm<T, pack, held>(n, rows, C(eps), centered != 0, drop, x, added, residual, scale, bias,      \
                                stream, out);                                                               \
    }                                                                                                       \
    extern "C" __global__ void __launch_bounds__(512) add_norm_back_##way(                                  \
        int64_t n, int64_t rows, double eps, int centered, Dropping drop, const T* stream, const T* scale,  \
        const T* g_stream, const T* g, T* out, T* to_x, C* moments) {                                       \
        add_norm_back<T, pack, held>(n, rows, C(eps), centered != 0, drop, stream, scale, g_stream, g, out, \
                                     to_x, moments);                                                        \
    }
SPMDX_ADD_NORM(held, pack_of<T>, 4)
SPMDX_ADD_NORM(long, pack_of<T>, 0)
SPMDX_ADD_NORM(any, 1, 0)

// What is added up over rows for each of the three vectors: g y, g and the gradient with respect to x. Of
// those that are wanted, which are not null.
struct Sums {
    C* of[3];
};

// A sum of each chunk of rows for every column; then of these sums, in order.
extern "C" __global__ void __launch_bounds__(256)
    add_norm_sums(int64_t n, int64_t rows, int64_t chunk, const T* stream, const T* g, const T* to_x,
                  const C* moments, Sums parts) {
    __shared__ C shared[3][8][33];
    const int64_t column = int64_t(blockIdx.x) * 32 + threadIdx.x, first = int64_t(blockIdx.y) * chunk;
    const int64_t last = first + chunk < rows ? first + chunk : rows;
    C sums[3] = {};
    for (int64_t row = first + threadIdx.y; column < n && row < last; row += blockDim.y) {
        const int64_t at = row * n + column;
        const C slope = widen(g[at]);
        if (parts.of[0]) sums[0] += slope * ((widen(stream[at]) - moments[2 * row]) * moments[2 * row + 1]);
        sums[1] += slope;
        if (parts.of[2]) sums[2] += widen(to_x[at]);
    }
    SPMDX_UNROLL for (int k = 0; k < 3; ++k) shared[k][threadIdx.y][threadIdx.x] = sums[k];
    __syncthreads();
    if (threadIdx.y || column >= n) return;
    SPMDX_UNROLL for (int k = 0; k < 3; ++k) {
        if (!parts.of[k]) continue;
        for (int j = 1; j < int(blockDim.y); ++j) sums[k] += shared[k][j][threadIdx.x];
        parts.of[k][int64_t(blockIdx.y) * n + column] = sums[k];
    }
}
extern "C" __global__ void add_norm_sum_parts(int64_t n, int64_t count, Sums parts, T* to_scale, T* to_bias,
                                              T* to_added) {
    T* const to[3] = {to_scale, to_bias, to_added};
    for (int64_t i = int64_t(thread_number()); i < n; i += int64_t(thread_count()))
        SPMDX_UNROLL for (int k = 0; k < 3; ++k) {
            if (!to[k]) continue;
            C sum = 0;
            for (int64_t j = 0; j < count; ++j) sum += parts.of[k][j * n + i];
            to[k][i] = narrow_to(sum, T());
        }
}
