// Attention as the GPU has it: softmax(scale q k') v for heads that share k and v, and its gradients, by
// tiles with an online softmax (Dao, "FlashAttention-2", 2023): memory is linear in the sequence. Sums have a
// fixed order; it is not the CPU's.
//
// A block of threads works on 32 rows; a warp on 4 of them, its lanes on the 32 columns of a tile, and then
// on the elements of the output, each lane on every 32nd.
#include "sight.h"

namespace spmdx {
namespace {

constexpr int tile = 32, warps = 8, per_warp = tile / warps;

// Rows [first, first + 32) of a matrix into shared memory, `wide` apart, zeros where there are none.
template <class T>
SPMDX_FN void fetch(const T* from, int64_t row, int64_t first, int64_t rows, int64_t width, Computed<T> scale,
                    Computed<T>* to, int wide) {
    for (int i = threadIdx.y; i < tile; i += warps)
        for (int64_t j = threadIdx.x; j < width; j += 32)
            to[i * wide + j] = first + i < rows ? widen(from[(first + i) * row + j]) * scale : Computed<T>(0);
}

// Dot products of this warp's rows with the row of its lane.
template <class C>
SPMDX_FN void dots(const C* rows, int rows_wide, const C* lane_rows, int lane_wide, int64_t width, C* sums) {
    SPMDX_UNROLL for (int r = 0; r < per_warp; ++r) sums[r] = 0;
    const C *const mine = lane_rows + int(threadIdx.x) * lane_wide, *const own = rows + threadIdx.y *
                                                                                            per_warp *
                                                                                            rows_wide;
    SPMDX_BY_FOUR for (int64_t c = 0; c < width; ++c) {
        const C x = mine[c];
        SPMDX_UNROLL for (int r = 0; r < per_warp; ++r) sums[r] = fma(own[r * rows_wide + c], x, sums[r]);
    }
}

// sums[r][c] += sum over lanes j of weight[r] of lane j times element lane + 32 c of row j.
template <int many, class C>
SPMDX_FN void gather(const C* weights, const C* rows, int wide, int64_t width, C sums[][many]) {
    SPMDX_BY_FOUR for (int j = 0; j < 32; ++j) {
        C x[many];
        SPMDX_UNROLL for (int c = 0; c < many; ++c) {
            const int64_t e = threadIdx.x + 32 * c;
            x[c] = e < width ? rows[j * wide + e] : C(0);
        }
        SPMDX_UNROLL for (int r = 0; r < per_warp; ++r) {
            const C w = __shfl_sync(everyone, weights[r], j);
            SPMDX_UNROLL for (int c = 0; c < many; ++c) sums[r][c] = fma(w, x[c], sums[r][c]);
        }
    }
}

template <class C>
SPMDX_FN C* shared_memory() {
    extern __shared__ __align__(16) unsigned char attention_memory[];
    return reinterpret_cast<C*>(attention_memory);
}

// The output (where there is room for it), and of each row the logarithm of its sum of powers (infinity where
// it sees nothing).
template <class T, int many>
SPMDX_FN void forward(const Shape& s, const View& q, const View& k, const View& v, const View& out,
                      const View& mask, const int64_t* limits, Computed<T>* logs) {
    using C = Computed<T>;
    const int64_t first = int64_t(blockIdx.y) * tile, batch = blockIdx.x / s.heads,
                  head = blockIdx.x % s.heads;
    const int qd = int(s.inner), kd = qd + 1, ve = int(s.outer);
    C *const queries = shared_memory<C>(), *const keys = queries + tile * qd,
             *const values = keys + tile * kd;
    const Sight eye = sight(mask, s, batch, head, limits);
    fetch(at<const T>(q, s, batch, head), q.row, first, s.rows, s.inner, C(s.scale), queries, qd);
    C top[per_warp], sum[per_warp], sums[per_warp][many];
    SPMDX_UNROLL for (int r = 0; r < per_warp; ++r) {
        top[r] = -infinity<C>(), sum[r] = 0;
        SPMDX_UNROLL for (int c = 0; c < many; ++c) sums[r][c] = 0;
    }
    const int64_t seen = seen_by(limits, first, s.rows, s.columns, tile);
    for (int64_t column = 0; column < seen; column += tile) {
        __syncthreads();
        fetch(at<const T>(k, s, batch, 0), k.row, column, s.columns, s.inner, C(1), keys, kd);
        if (out.data) fetch(at<const T>(v, s, batch, 0), v.row, column, s.columns, s.outer, C(1), values, ve);
        __syncthreads();
        C scores[per_warp];
        dots(queries, qd, keys, kd, s.inner, scores);
        SPMDX_UNROLL for (int r = 0; r < per_warp; ++r) {
            const bool sees =
                eye.sees(first + threadIdx.y * per_warp + r, column + threadIdx.x, s.rows, s.columns);
            const C score = sees ? scores[r] : -infinity<C>();
            const C most = Greatest<C>::of(top[r], over_warp<Greatest<C>>(score));
            const C base = most == -infinity<C>() ? C(0) : most;  // nothing seen so far
            const C shrink = spmdx::exp(top[r] - base);
            scores[r] = spmdx::exp(score - base);
            sum[r] = sum[r] * shrink + over_warp<Add<C>>(scores[r]);
            top[r] = most;
            SPMDX_UNROLL for (int c = 0; c < many; ++c) sums[r][c] *= shrink;
        }
        if (out.data) gather<many>(scores, values, ve, s.outer, sums);
    }
    SPMDX_UNROLL for (int r = 0; r < per_warp; ++r) {
        const int64_t row = first + threadIdx.y * per_warp + r;
        if (row >= s.rows) continue;
        if (logs && threadIdx.x == 0)
            logs[int64_t(blockIdx.x) * s.rows + row] =
                sum[r] == 0 ? infinity<C>() : top[r] + (sum[r] == sum[r] ? spmdx::log(sum[r]) : sum[r]);
        if (!out.data) continue;
        const C part = sum[r] == 0 ? C(1) : 1 / sum[r];
        T* const to = at<T>(out, s, batch, head) + row * out.row;
        SPMDX_UNROLL for (int c = 0; c < many; ++c) {
            const int64_t e = threadIdx.x + 32 * c;
            if (e < s.outer) to[e] = narrow_to(sums[r][c] * part, T());
        }
    }
}

// Of each row g . out, which its gradient is less by.
template <class T>
SPMDX_FN void along_rows(const Shape& s, const View& g, const View& out, Computed<T>* to) {
    using C = Computed<T>;
    const int64_t batch = blockIdx.x / s.heads, head = blockIdx.x % s.heads;
    const T *const slopes = at<const T>(g, s, batch, head), *const made = at<const T>(out, s, batch, head);
    for (int64_t row = int64_t(blockIdx.y) * warps + threadIdx.y; row < s.rows;
         row += int64_t(gridDim.y) * warps) {
        const T *const a = slopes + row * g.row, *const b = made + row * out.row;
        C sum = 0;
        for (int64_t e = threadIdx.x; e < s.outer; e += 32) sum = fma(widen(a[e]), widen(b[e]), sum);
        sum = over_warp<Add<C>>(sum);
        if (threadIdx.x == 0) to[int64_t(blockIdx.x) * s.rows + row] = sum;
    }
}

// With respect to q.
template <class T, int many>
SPMDX_FN void back_rows(const Shape& s, const View& q, const View& k, const View& v, const View& g,
                        const View& mask, const int64_t* limits, const Computed<T>* logs,
                        const Computed<T>* along, const View& out) {
    using C = Computed<T>;
    const int64_t first = int64_t(blockIdx.y) * tile, batch = blockIdx.x / s.heads,
                  head = blockIdx.x % s.heads;
    const int qd = int(s.inner), kd = qd + 1, ge = int(s.outer), ve = ge + 1;
    C *const queries = shared_memory<C>(), *const keys = queries + tile * qd,
             *const values = keys + tile * kd;
    C* const slopes = values + tile * ve;
    const Sight eye = sight(mask, s, batch, head, limits);
    fetch(at<const T>(q, s, batch, head), q.row, first, s.rows, s.inner, C(s.scale), queries, qd);
    fetch(at<const T>(g, s, batch, head), g.row, first, s.rows, s.outer, C(1), slopes, ge);
    C sums[per_warp][many], log[per_warp], less[per_warp];
    SPMDX_UNROLL for (int r = 0; r < per_warp; ++r) {
        const int64_t row = first + threadIdx.y * per_warp + r, number = int64_t(blockIdx.x) * s.rows + row;
        log[r] = row < s.rows ? logs[number] : infinity<C>(), less[r] = row < s.rows ? along[number] : C(0);
        SPMDX_UNROLL for (int c = 0; c < many; ++c) sums[r][c] = 0;
    }
    const int64_t seen = seen_by(limits, first, s.rows, s.columns, tile);
    for (int64_t column = 0; column < seen; column += tile) {
        __syncthreads();
        fetch(at<const T>(k, s, batch, 0), k.row, column, s.columns, s.inner, C(1), keys, kd);
        fetch(at<const T>(v, s, batch, 0), v.row, column, s.columns, s.outer, C(1), values, ve);
        __syncthreads();
        C scores[per_warp], back[per_warp];
        dots(queries, qd, keys, kd, s.inner, scores);
        dots(slopes, ge, values, ve, s.outer, back);
        SPMDX_UNROLL for (int r = 0; r < per_warp; ++r) {
            const bool sees =
                eye.sees(first + threadIdx.y * per_warp + r, column + threadIdx.x, s.rows, s.columns);
            scores[r] = sees ? spmdx::exp(scores[r] - log[r]) * (back[r] - less[r]) : C(0);
        }
        gather<many>(scores, keys, kd, s.inner, sums);
    }
    SPMDX_UNROLL for (int r = 0; r < per_warp; ++r) {
        const int64_t row = first + threadIdx.y * per_warp + r;
        if (row >= s.rows) continue;
        T* const to = at<T>(out, s, batch, head) + row * out.row;
        SPMDX_UNROLL for (int c = 0; c < many; ++c) {
            const int64_t e = threadIdx.x + 32 * c;
            if (e < s.inner) to[e] = narrow_to(sums[r][c] * C(s.scale), T());
        }
    }
}

// With respect to k and v: a block of threads has 32 columns, and goes over the heads and rows that see them.
template <class T, int many>
SPMDX_FN void back_columns(const Shape& s, const View& q, const View& k, const View& v, const View& g,
                           const View& mask, const int64_t* limits, const Computed<T>* logs,
                           const Computed<T>* along, const View& to_k, const View& to_v) {
    using C = Computed<T>;
    const int64_t first = int64_t(blockIdx.y) * tile, batch = blockIdx.x;
    const int kd = int(s.inner), qd = kd + 1, ve = int(s.outer), ge = ve + 1;
    C *const queries = shared_memory<C>(), *const keys = queries + tile * qd,
             *const values = keys + tile * kd;
    C* const slopes = values + tile * ve;
    fetch(at<const T>(k, s, batch, 0), k.row, first, s.columns, s.inner, C(1), keys, kd);
    fetch(at<const T>(v, s, batch, 0), v.row, first, s.columns, s.outer, C(1), values, ve);
    C k_sums[per_warp][many], v_sums[per_warp][many];
    SPMDX_UNROLL for (int r = 0; r < per_warp; ++r) SPMDX_UNROLL for (int c = 0; c < many; ++c) k_sums[r][c] =
        v_sums[r][c] = 0;
    for (int64_t head = 0; head < s.heads; ++head) {
        const Sight eye = sight(mask, s, batch, head, limits);
        for (int64_t start = 0; start < s.rows; start += tile) {
            if (seen_by(limits, start, s.rows, s.columns, tile) <= first) continue;  // for all threads alike
            __syncthreads();
            fetch(at<const T>(q, s, batch, head), q.row, start, s.rows, s.inner, C(s.scale), queries, qd);
            fetch(at<const T>(g, s, batch, head), g.row, start, s.rows, s.outer, C(1), slopes, ge);
            __syncthreads();
            const int64_t row = start + threadIdx.x, number = (batch * s.heads + head) * s.rows + row;
            const C log = row < s.rows ? logs[number] : infinity<C>(),
                    less = row < s.rows ? along[number] : C(0);
            C scores[per_warp], back[per_warp];
            dots(keys, kd, queries, qd, s.inner, scores);
            dots(values, ve, slopes, ge, s.outer, back);
            SPMDX_UNROLL for (int r = 0; r < per_warp; ++r) {
                const bool sees = eye.sees(row, first + threadIdx.y * per_warp + r, s.rows, s.columns);
                scores[r] = sees ? spmdx::exp(scores[r] - log) : C(0);
                back[r] = scores[r] * (back[r] - less);
            }
            gather<many>(scores, slopes, ge, s.outer, v_sums);
            gather<many>(back, queries, qd, s.inner, k_sums);  // the queries have the scale in them
        }
    }
    SPMDX_UNROLL for (int r = 0; r < per_warp; ++r) {
        const int64_t column = first + threadIdx.y * per_warp + r;
        if (column >= s.columns) continue;
        T *const k_row = at<T>(to_k, s, batch, 0) + column * to_k.row, *const v_row =
                                                                           at<T>(to_v, s, batch, 0) +
                                                                           column * to_v.row;
        SPMDX_UNROLL for (int c = 0; c < many; ++c) {
            const int64_t e = threadIdx.x + 32 * c;
            if (e < s.inner) k_row[e] = narrow_to(k_sums[r][c], T());
            if (e < s.outer) v_row[e] = narrow_to(v_sums[r][c], T());
        }
    }
}

}  // namespace
}  // namespace spmdx

using namespace spmdx;

// For the type that the compiler is told, SPMDX_TYPE; rows of up to 64, 128 and 256 elements.
using T = SPMDX_TYPE;
using C = Computed<T>;
#define SPMDX_ATTEND(width, many)                                                                         \
    extern "C" __global__ void __launch_bounds__(256) attend_##width(                                     \
        Shape s, View q, View k, View v, View out, View mask, const int64_t* limits, C* logs) {           \
        forward<T, many>(s, q, k, v, out, mask, limits, logs);                                            \
    }                                                                                                     \
    extern "C" __global__ void __launch_bounds__(256)                                                     \
        attend_rows_##width(Shape s, View q, View k, View v, View g, View mask, const int64_t* limits,    \
                            const C* logs, const C* along, View out) {                                    \
        back_rows<T, many>(s, q, k, v, g, mask, limits, logs, along, out);                                \
    }                                                                                                     \
    extern "C" __global__ void __launch_bounds__(256)                                                     \
        attend_columns_##width(Shape s, View q, View k, View v, View g, View mask, const int64_t* limits, \
                               const C* logs, const C* along, View to_k, View to_v) {                     \
        back_columns<T, many>(s, q, k, v, g, mask, limits, logs, along, to_k, to_v);                      \
    }
SPMDX_ATTEND(64, 2)
SPMDX_ATTEND(128, 4)
SPMDX_ATTEND(256, 8)
extern "C" __global__ void attend_along(Shape s, View g, View out, C* to) { along_rows<T>(s, g, out, to); }
