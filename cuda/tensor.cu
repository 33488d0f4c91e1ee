// Attention on tensor cores, for float16 and bfloat16: the algorithm of attention.cu, its products made of
// tiles of 16 by 16 by 8. A warp has 16 rows; operands lie in shared memory, rows of `wide` elements,
// whichever dimension is summed side by side.
#include "mma.h"
#include "sight.h"

namespace spmdx {
namespace {

constexpr int warps = 4, rows_of_block = 16 * warps;
constexpr float log2_of_e = 1.4426950408889634f;

SPMDX_FN int group() { return int(threadIdx.x) / 4; }
SPMDX_FN int pair() { return 2 * (int(threadIdx.x) % 4); }

template <class T>
SPMDX_FN uint32_t both(const T* at) {
    return *reinterpret_cast<const uint32_t*>(at);
}
template <class T>
SPMDX_FN void left(const T* from, int wide, int row, int k, uint32_t (&a)[4]) {
    const T* const at = from + (row + group()) * wide + k + pair();
    a[0] = both(at), a[1] = both(at + 8 * wide), a[2] = both(at + 8), a[3] = both(at + 8 * wide + 8);
}
template <class T>
SPMDX_FN void right(const T* from, int wide, int column, int k, uint32_t (&b)[2]) {
    const T* const at = from + (column + group()) * wide + k + pair();
    b[0] = both(at), b[1] = both(at + 8);
}

// c = this warp's rows of a times the rows of b: 16 by 8 `many`, summed over `depth`.
template <int many, int depth, class T>
SPMDX_FN void multiply(const T* a, int a_wide, int row, const T* b, int b_wide, float (&c)[many][4]) {
    SPMDX_UNROLL for (int j = 0; j < many; ++j) SPMDX_UNROLL for (int e = 0; e < 4; ++e) c[j][e] = 0;
    SPMDX_UNROLL for (int k = 0; k < depth; k += 16) {
        uint32_t x[4];
        left(a, a_wide, row, k, x);
        SPMDX_UNROLL for (int j = 0; j < many; ++j) {
            uint32_t y[2];
            right(b, b_wide, 8 * j, k, y);
            multiply_tile(c[j], x, y, T());
        }
    }
}
// c += p times the rows of b, where p is a result of the above (16 by 8 `inner`).
template <int many, int inner, class T>
SPMDX_FN void multiply_on(const float (&p)[inner][4], const T* b, int b_wide, float (&c)[many][4]) {
    SPMDX_UNROLL for (int k = 0; k < inner; k += 2) {
        const uint32_t x[4] = {pair_of(p[k][0], p[k][1], T()), pair_of(p[k][2], p[k][3], T()),
                               pair_of(p[k + 1][0], p[k + 1][1], T()),
                               pair_of(p[k + 1][2], p[k + 1][3], T())};
        SPMDX_UNROLL for (int j = 0; j < many; ++j) {
            uint32_t y[2];
            right(b, b_wide, 8 * j, 8 * k, y);
            multiply_tile(c[j], x, y, T());
        }
    }
}

// Rows [first, first + count) of a matrix, padded by zeros to `depth` elements; and the same turned over,
// where there is room.
template <int count, int depth, class T>
SPMDX_FN void fetch(const T* from, int64_t row, int64_t first, int64_t rows, int64_t width, T* to, int wide,
                    T* turned = nullptr, int turned_wide = 0) {
    constexpr int packs = depth / 8;
    const int thread = int(threadIdx.y * 32 + threadIdx.x);
    const bool whole = width % 8 == 0 && row % 8 == 0 && aligned<16>(from);
    for (int i = thread; i < count * packs; i += 32 * warps) {
        // of those that are turned over a warp takes one pack of 32 rows, else all packs of a row
        const int r = turned ? i % count : i / packs, at = 8 * (turned ? i / count : i % packs);
        Pack<T, 8> some;
        SPMDX_UNROLL for (int e = 0; e < 8; ++e) some.v[e] = T{0};
        if (first + r < rows) {
            const T* const source = from + (first + r) * row + at;
            if (whole && at < width) {
                some = load<8>(source);
            } else {
                SPMDX_UNROLL for (int e = 0; e < 8; ++e) if (at + e < width) some.v[e] = source[e];
            }
        }
        if (to) store<8>(to + r * wide + at, some);
        if (turned) SPMDX_UNROLL for (int e = 0; e < 8; ++e) turned[(at + e) * turned_wide + r] = some.v[e];
    }
}

template <class T>
SPMDX_FN T* shared_memory() {
    extern __shared__ __align__(16) unsigned char tensor_memory[];
    return reinterpret_cast<T*>(tensor_memory);
}

SPMDX_FN float over_four(float x, bool greatest) {
    SPMDX_UNROLL for (int step = 1; step < 4; step *= 2) {
        const float y = __shfl_xor_sync(everyone, x, step);
        x = greatest ? Greatest<float>::of(x, y) : x + y;
    }
    return x;
}

template <class T, int depth>
SPMDX_FN void forward(const Shape& s, const View& q, const View& k, const View& v, const View& out,
                      const View& mask, const int64_t* limits, float* logs) {
    constexpr int tile = 64, tiles = tile / 8, wide = depth + 8, turned = tile + 8;
    const int64_t batch = blockIdx.x / s.heads, head = blockIdx.x % s.heads;
    const int64_t first = int64_t(blockIdx.y) * rows_of_block;
    T *const queries = shared_memory<T>(), *const keys = queries + rows_of_block * wide,
             *const values = keys + tile * wide;
    const Sight eye = sight(mask, s, batch, head, limits);
    fetch<rows_of_block, depth>(at<const T>(q, s, batch, head), q.row, first, s.rows, s.inner, queries, wide);
    const int own = 16 * int(threadIdx.y);
    const float scale = float(s.scale) * log2_of_e;
    float top[2] = {-infinity<float>(), -infinity<float>()}, sum[2] = {0, 0}, sums[depth / 8][4];
    SPMDX_UNROLL for (int j = 0; j < depth / 8; ++j) SPMDX_UNROLL for (int e = 0; e < 4; ++e) sums[j][e] = 0;
    const int64_t seen = seen_by(limits, first, s.rows, s.columns, rows_of_block);
    for (int64_t column = 0; column < seen; column += tile) {
        __syncthreads();
        fetch<tile, depth>(at<const T>(k, s, batch, 0), k.row, column, s.columns, s.inner, keys, wide);
        fetch<tile, depth>(at<const T>(v, s, batch, 0), v.row, column, s.columns, s.outer,
                           static_cast<T*>(nullptr), 0, values, turned);
        __syncthreads();
        float p[tiles][4], most[2] = {-infinity<float>(), -infinity<float>()}, more[2] = {0, 0}, shrink[2];
        multiply<tiles, depth>(queries, wide, own, keys, wide, p);
        SPMDX_UNROLL for (int j = 0; j < tiles; ++j) SPMDX_UNROLL for (int e = 0; e < 4; ++e) {
            const bool sees = eye.sees(first + own + group() + 8 * (e / 2), column + 8 * j + pair() + e % 2,
                                       s.rows, s.columns);
            p[j][e] = sees ? p[j][e] * scale : -infinity<float>();
            most[e / 2] = Greatest<float>::of(most[e / 2], p[j][e]);
        }
        SPMDX_UNROLL for (int h = 0; h < 2; ++h) {
            most[h] = Greatest<float>::of(top[h], over_four(most[h], true));
            const float base = most[h] == -infinity<float>() ? 0.0f : most[h];  // nothing seen so far
            shrink[h] = power_of_two(top[h] - base);
            top[h] = most[h], most[h] = base;
        }
        SPMDX_UNROLL for (int j = 0; j < tiles; ++j) SPMDX_UNROLL for (int e = 0; e < 4; ++e) {
            p[j][e] = power_of_two(p[j][e] - most[e / 2]);
            more[e / 2] += p[j][e];
        }
        SPMDX_UNROLL for (int h = 0; h < 2; ++h) sum[h] = sum[h] * shrink[h] + over_four(more[h], false);
        SPMDX_UNROLL for (int j = 0; j < depth / 8; ++j) SPMDX_UNROLL for (int e = 0; e < 4; ++e)
            sums[j][e] *= shrink[e / 2];
        multiply_on<depth / 8>(p, values, turned, sums);
    }
    SPMDX_UNROLL for (int h = 0; h < 2; ++h) {
        const int64_t row = first + own + group() + 8 * h;
        if (row >= s.rows) continue;
        if (logs && pair() == 0)  // of base 2, as the gradients take it
            logs[int64_t(blockIdx.x) * s.rows + row] =
                sum[h] == 0 ? infinity<float>()
                            : top[h] + (sum[h] == sum[h] ? spmdx::log(sum[h]) * log2_of_e : sum[h]);
        if (!out.data) continue;
        const float part = sum[h] == 0 ? 1.0f : 1.0f / sum[h];
        T* const to = at<T>(out, s, batch, head) + row * out.row;
        SPMDX_UNROLL for (int j = 0; j < depth / 8; ++j)
            SPMDX_UNROLL for (int e = 0; e < 2; ++e) if (8 * j + pair() + e < s.outer)
                to[8 * j + pair() + e] = narrow_to(sums[j][2 * h + e] * part, T());
    }
}

// With respect to q.
template <class T, int depth>
SPMDX_FN void back_rows(const Shape& s, const View& q, const View& k, const View& v, const View& g,
                        const View& mask, const int64_t* limits, const float* logs, const float* along,
                        const View& out) {
    constexpr int tile = 32, tiles = tile / 8, wide = depth + 8, turned = tile + 8;
    const int64_t batch = blockIdx.x / s.heads, head = blockIdx.x % s.heads;
    const int64_t first = int64_t(blockIdx.y) * rows_of_block;
    T *const queries = shared_memory<T>(), *const slopes = queries + rows_of_block * wide;
    T *const keys = slopes + rows_of_block * wide, *const values = keys + tile * wide,
             *const turned_keys = values + tile * wide;
    const Sight eye = sight(mask, s, batch, head, limits);
    fetch<rows_of_block, depth>(at<const T>(q, s, batch, head), q.row, first, s.rows, s.inner, queries, wide);
    fetch<rows_of_block, depth>(at<const T>(g, s, batch, head), g.row, first, s.rows, s.outer, slopes, wide);
    const int own = 16 * int(threadIdx.y);
    const float scale = float(s.scale) * log2_of_e;
    float log[2], less[2], sums[depth / 8][4];
    SPMDX_UNROLL for (int j = 0; j < depth / 8; ++j) SPMDX_UNROLL for (int e = 0; e < 4; ++e) sums[j][e] = 0;
    SPMDX_UNROLL for (int h = 0; h < 2; ++h) {
        const int64_t row = first + own + group() + 8 * h, number = int64_t(blockIdx.x) * s.rows + row;
        log[h] = row < s.rows ? logs[number] : infinity<float>(),
        less[h] = row < s.rows ? along[number] : 0.0f;
    }
    const int64_t seen = seen_by(limits, first, s.rows, s.columns, rows_of_block);
    for (int64_t column = 0; column < seen; column += tile) {
        __syncthreads();
        fetch<tile, depth>(at<const T>(k, s, batch, 0), k.row, column, s.columns, s.inner, keys, wide,
                           turned_keys, turned);
        fetch<tile, depth>(at<const T>(v, s, batch, 0), v.row, column, s.columns, s.outer, values, wide);
        __syncthreads();
        float p[tiles][4], back[tiles][4];
        multiply<tiles, depth>(queries, wide, own, keys, wide, p);
        multiply<tiles, depth>(slopes, wide, own, values, wide, back);
        SPMDX_UNROLL for (int j = 0; j < tiles; ++j) SPMDX_UNROLL for (int e = 0; e < 4; ++e) {
            const bool sees = eye.sees(first + own + group() + 8 * (e / 2), column + 8 * j + pair() + e % 2,
                                       s.rows, s.columns);
            p[j][e] = sees ? power_of_two(p[j][e] * scale - log[e / 2]) * (back[j][e] - less[e / 2]) : 0.0f;
        }
        multiply_on<depth / 8>(p, turned_keys, turned, sums);
    }
    SPMDX_UNROLL for (int h = 0; h < 2; ++h) {
        const int64_t row = first + own + group() + 8 * h;
        if (row >= s.rows) continue;
        T* const to = at<T>(out, s, batch, head) + row * out.row;
        SPMDX_UNROLL for (int j = 0; j < depth / 8; ++j)
            SPMDX_UNROLL for (int e = 0; e < 2; ++e) if (8 * j + pair() + e < s.inner)
                to[8 * j + pair() + e] = narrow_to(sums[j][2 * h + e] * float(s.scale), T());
    }
}

// With respect to k and v: a block of threads has 64 columns, and goes over the heads and rows that see them.
template <class T, int depth>
SPMDX_FN void back_columns(const Shape& s, const View& q, const View& k, const View& v, const View& g,
                           const View& mask, const int64_t* limits, const float* logs, const float* along,
                           const View& to_k, const View& to_v) {
    constexpr int tile = 32, tiles = tile / 8, wide = depth + 8, turned = tile + 8;
    const int64_t batch = blockIdx.x, first = int64_t(blockIdx.y) * rows_of_block;
    T *const keys = shared_memory<T>(), *const values = keys + rows_of_block * wide;
    T *const queries = values + rows_of_block * wide, *const slopes = queries + tile * wide;
    T *const turned_queries = slopes + tile * wide, *const turned_slopes = turned_queries + depth * turned;
    fetch<rows_of_block, depth>(at<const T>(k, s, batch, 0), k.row, first, s.columns, s.inner, keys, wide);
    fetch<rows_of_block, depth>(at<const T>(v, s, batch, 0), v.row, first, s.columns, s.outer, values, wide);
    const int own = 16 * int(threadIdx.y);
    const float scale = float(s.scale) * log2_of_e;
    float k_sums[depth / 8][4], v_sums[depth / 8][4];
    SPMDX_UNROLL for (int j = 0; j < depth / 8; ++j) SPMDX_UNROLL for (int e = 0; e < 4; ++e) k_sums[j][e] =
        v_sums[j][e] = 0;
    for (int64_t head = 0; head < s.heads; ++head) {
        const Sight eye = sight(mask, s, batch, head, limits);
        for (int64_t start = 0; start < s.rows; start += tile) {
            if (seen_by(limits, start, s.rows, s.columns, tile) <= first) continue;  // for all threads alike
            __syncthreads();
            fetch<tile, depth>(at<const T>(q, s, batch, head), q.row, start, s.rows, s.inner, queries, wide,
                               turned_queries, turned);
            fetch<tile, depth>(at<const T>(g, s, batch, head), g.row, start, s.rows, s.outer, slopes, wide,
                               turned_slopes, turned);
            __syncthreads();
            float p[tiles][4], back[tiles][4];
            multiply<tiles, depth>(keys, wide, own, queries, wide, p);
            multiply<tiles, depth>(values, wide, own, slopes, wide, back);
            SPMDX_UNROLL for (int j = 0; j < tiles; ++j) SPMDX_UNROLL for (int e = 0; e < 4; ++e) {
                const int64_t row = start + 8 * j + pair() + e % 2,
                              number = (batch * s.heads + head) * s.rows + row;
                const bool sees = eye.sees(row, first + own + group() + 8 * (e / 2), s.rows, s.columns);
                p[j][e] = sees ? power_of_two(p[j][e] * scale - logs[number]) : 0.0f;
                back[j][e] = sees ? p[j][e] * (back[j][e] - along[number]) : 0.0f;
            }
            multiply_on<depth / 8>(p, turned_slopes, turned, v_sums);
            multiply_on<depth / 8>(back, turned_queries, turned, k_sums);
        }
    }
    SPMDX_UNROLL for (int h = 0; h < 2; ++h) {
        const int64_t column = first + own + group() + 8 * h;
        if (column >= s.columns) continue;
        T *const k_row = at<T>(to_k, s, batch, 0) + column * to_k.row, *const v_row =
                                                                           at<T>(to_v, s, batch, 0) +
                                                                           column * to_v.row;
        SPMDX_UNROLL for (int j = 0; j < depth / 8; ++j) SPMDX_UNROLL for (int e = 0; e < 2; ++e) {
            const int at = 8 * j + pair() + e;
            if (at < s.inner) k_row[at] = narrow_to(k_sums[j][2 * h + e] * float(s.scale), T());
            if (at < s.outer) v_row[at] = narrow_to(v_sums[j][2 * h + e], T());
        }
    }
}

}  // namespace
}  // namespace spmdx

using namespace spmdx;

// For the type that the compiler is told, SPMDX_TYPE; rows of up to 64 and 128 elements.
using T = SPMDX_TYPE;
#define SPMDX_ATTEND(depth)                                                                               \
    extern "C" __global__ void __launch_bounds__(128) attend_##depth(                                     \
        Shape s, View q, View k, View v, View out, View mask, const int64_t* limits, float* logs) {       \
        forward<T, depth>(s, q, k, v, out, mask, limits, logs);                                           \
    }                                                                                                     \
    extern "C" __global__ void __launch_bounds__(128)                                                     \
        attend_rows_##depth(Shape s, View q, View k, View v, View g, View mask, const int64_t* limits,    \
                            const float* logs, const float* along, View out) {                            \
        back_rows<T, depth>(s, q, k, v, g, mask, limits, logs, along, out);                               \
    }                                                                                                     \
    extern "C" __global__ void __launch_bounds__(128)                                                     \
        attend_columns_##depth(Shape s, View q, View k, View v, View g, View mask, const int64_t* limits, \
                               const float* logs, const float* along, View to_k, View to_v) {             \
        back_columns<T, depth>(s, q, k, v, g, mask, limits, logs, along, to_k, to_v);                     \
    }
SPMDX_ATTEND(64)
SPMDX_ATTEND(128)
