// Fills a block with the distributions of streams.h on a CPU: tiles of elements, each with its own stream, in
// loops that the compiler vectorises. An element whose attempt fails waits for the next tile, so that tiles
// stay full; what it becomes does not depend on what is beside it.
#pragma once

#include "layout.h"
#include "streams.h"
#include "tile.h"

namespace spmdx {

enum class Stream { gamma, log_gamma, poisson, binomial };

// An operand: one value for all elements (stride 0), or one for each (stride 1).
struct Operand {
    const void* data;
    uint64_t stride;
};

namespace {

// The parameters of all elements, where they are the same.
struct Common {
    bool same;
    double a, b;
};

// Elements that wait, with the keys of their streams.
template <class D>
class Line {
 protected:
    static constexpr int tile = 128;
    typedef uint64_t Words[tile + spill];
    typedef double Values[tile + spill];

    const Key parent_;
    const bool same_;
    const D given_;
    double* const out_;
    int waiting_ = 0, keyed_ = 0;
    Words index_{}, key_{}, stream_{}, number_{}, first_{}, second_{}, at_;
    Values a_, b_;

    Line(Key parent, Common all, double* out)
        : parent_(parent), same_(all.same), given_(D::prepare(all.a, all.b)), out_(out) {}

    void draw() {
        fold_tile(parent_, index_ + keyed_, uint64_t(waiting_ - keyed_), key_ + keyed_, stream_ + keyed_);
        stream_tile(parent_.threefry, key_, stream_, number_, uint64_t(waiting_), first_, second_);
    }
    // As many as there is room for of `count` elements from `index` on.
    uint64_t put(uint64_t index, uint64_t at, uint64_t count) {
        const uint64_t room = uint64_t(tile - waiting_), now = count < room ? count : room;
        SPMDX_FOR (uint64_t j = 0; j < now; ++j) {
            index_[uint64_t(waiting_) + j] = index + j;
            at_[uint64_t(waiting_) + j] = at + j;
            number_[uint64_t(waiting_) + j] = 0;
        }
        waiting_ += int(now);
        return now;
    }
    // Calls body(j, the distribution of element j), for parameters that lie in a and b.
    template <class Body>
    SPMDX_METHOD void each(uint64_t count, const double* a, const double* b, const Body& body) const {
        if (same_) {
            const D given = given_;
            SPMDX_FOR (uint64_t j = 0; j < count; ++j) body(j, given);
        } else {
            SPMDX_FOR (uint64_t j = 0; j < count; ++j) body(j, D::prepare(a[j], b[j]));
        }
    }
};

template <class D>
class Rejection : Line<D> {
    using L = Line<D>;
    typename L::Words taken_, extra_number_, extra_first_{}, extra_second_{};
    typename L::Values candidate_, value_;
    // Those that the quick test leaves in doubt.
    int doubtful_[L::tile];
    typename L::Words doubtful_first_, doubtful_second_, passed_;
    typename L::Values doubtful_candidate_, doubtful_a_, doubtful_b_, errors_;
    D complete_;

    __attribute__((noinline)) void quick() {
        const uint64_t *const first = L::first_, *const second = L::second_;
        const uint64_t *const third = extra_first_, *const fourth = extra_second_;
        uint64_t* const taken = taken_;
        double *const candidates = candidate_, *const values = value_;
        L::each(uint64_t(L::waiting_), L::a_, L::b_,
                [=](uint64_t j, const D& of) __attribute__((always_inline)) {
                    const Attempt drawn{first[j], second[j]};
                    double candidate;
                    taken[j] = of.quick(drawn, candidate);
                    candidates[j] = candidate;
                    values[j] = of.finish(candidate, {third[j], fourth[j]});
                });
    }
    __attribute__((noinline)) void slow(uint64_t count) {
        const uint64_t *const first = doubtful_first_, *const second = doubtful_second_;
        const double *const candidates = doubtful_candidate_, *const a = doubtful_a_, *const b = doubtful_b_;
        const double* const errors = errors_;
        uint64_t* const passed = passed_;
        if (L::same_) {
            const D given = complete_;
            SPMDX_FOR (uint64_t j = 0; j < count; ++j)
                passed[j] = given.slow({first[j], second[j]}, candidates[j], errors[j]);
        } else {
            SPMDX_FOR (uint64_t j = 0; j < count; ++j) {
                D of = D::prepare(a[j], b[j]);
                of.complete();
                passed[j] = of.slow({first[j], second[j]}, candidates[j], errors[j]);
            }
        }
    }
    void attempt() {
        L::draw();
        if constexpr (D::extra)
            stream_tile(L::parent_.threefry, L::key_, L::stream_, extra_number_, uint64_t(L::waiting_),
                        extra_first_, extra_second_);
        quick();
        int doubts = 0, kept = 0;
        for (int j = 0; j < L::waiting_; ++j) {
            doubtful_[doubts] = j;
            doubts += !taken_[j];
        }
        for (int i = 0; i < doubts; ++i) {
            const int j = doubtful_[i];
            doubtful_first_[i] = L::first_[j];
            doubtful_second_[i] = L::second_[j];
            doubtful_candidate_[i] = candidate_[j];
            doubtful_a_[i] = L::a_[j];
            doubtful_b_[i] = L::b_[j];
            errors_[i] = (L::same_ ? L::given_ : D::prepare(L::a_[j], L::b_[j])).errors(candidate_[j]);
        }
        slow(uint64_t(doubts));
        // All are written, and those that fail once more later.
        for (int j = 0; j < L::waiting_; ++j) L::out_[L::at_[j]] = value_[j];
        for (int i = 0; i < doubts; ++i) {  // those that fail move to the front
            const int j = doubtful_[i];
            L::key_[kept] = L::key_[j];
            L::stream_[kept] = L::stream_[j];
            L::number_[kept] = L::number_[j] + 1;
            L::at_[kept] = L::at_[j];
            L::a_[kept] = L::a_[j];
            L::b_[kept] = L::b_[j];
            kept += !passed_[i];
        }
        L::waiting_ = L::keyed_ = kept;
    }

 public:
    Rejection(Key parent, Common all, double* out) : L(parent, all, out), complete_(L::given_) {
        if (all.same) complete_.complete();
        for (uint64_t& each : extra_number_) each = extra_block;
    }
    void add(uint64_t index, uint64_t at, double a, double b) {
        L::a_[L::waiting_] = a;
        L::b_[L::waiting_] = b;
        run(index, at, 1);
    }
    void run(uint64_t index, uint64_t at, uint64_t count) {
        while (count) {
            const uint64_t now = L::put(index, at, count);
            index += now, at += now, count -= now;
            if (L::waiting_ == L::tile) attempt();
        }
    }
    void flush() {
        while (L::waiting_) attempt();
    }
};

template <class D>
class Inversion : Line<D> {
    using L = Line<D>;
    typename L::Values rest_, p_, k_;

    // Until no element has a rest above its next probability; those that have none are marked by -1.
    __attribute__((noinline)) void invert() {
        const uint64_t *const first = L::first_, *const second = L::second_, count = uint64_t(L::waiting_);
        double *const rest = rest_, *const p = p_, *const found = k_;
        L::each(count, L::a_, L::b_, [=](uint64_t j, const D& of) __attribute__((always_inline)) {
            rest[j] = Attempt{first[j], second[j]}.u();
            p[j] = of.first();
            found[j] = 0;
        });
        uint64_t more = 1;
        for (double k = 0; more && k < most_inverted; k += 1) {
            more = 0;
            L::each(count, L::a_, L::b_, [=, &more](uint64_t j, const D& of) __attribute__((always_inline)) {
                const bool on = (rest[j] > p[j]) & (k < of.most());
                rest[j] = pick(on, rest[j] - p[j], -1.0);
                found[j] += pick(on, 1.0, 0.0);
                p[j] *= of.ratio(k + 1);
                more |= uint64_t(on);
            });
        }
        L::each(count, L::a_, L::b_, [=](uint64_t j, const D& of) __attribute__((always_inline)) {
            found[j] = of.finish(found[j]);
        });
    }

 public:
    Inversion(Key parent, Common all, double* out) : L(parent, all, out) {}
    void add(uint64_t index, uint64_t at, double a, double b) {
        L::a_[L::waiting_] = a;
        L::b_[L::waiting_] = b;
        run(index, at, 1);
    }
    void run(uint64_t index, uint64_t at, uint64_t count) {
        while (count) {
            const uint64_t now = L::put(index, at, count);
            index += now, at += now, count -= now;
            if (L::waiting_ == L::tile) flush();
        }
    }
    void flush() {
        L::draw();
        invert();
        for (int j = 0; j < L::waiting_; ++j) L::out_[L::at_[j]] = k_[j];
        L::waiting_ = 0;
    }
};

// Elements of which nothing is drawn.
template <bool logarithm>
class FixedGamma {
    double* const out_;
    const double alpha_;

 public:
    FixedGamma(Key, Common all, double* out) : out_(out), alpha_(all.a) {}
    void add(uint64_t, uint64_t at, double alpha, double) { out_[at] = fixed_gamma(alpha, logarithm); }
    void run(uint64_t, uint64_t at, uint64_t count) {
        for (uint64_t j = 0; j < count; ++j) out_[at + j] = fixed_gamma(alpha_, logarithm);
    }
    void flush() {}
};

// Elements [begin, end) of the block at `out`: each goes to the line (0, 1 or 2) that `which(a, b)` says. A
// distribution of one parameter has it twice.
template <class Line0, class Line1, class Line2, class Which>
inline void lines(Key key, const Layout& layout, const Operand* in, uint64_t begin, uint64_t end, double* out,
                  const Which& which) {
    const double *const a = static_cast<const double*>(in[0].data), *const b = static_cast<const double*>(
                                                                        in[1].data);
    const Key parent = fold_in(key, element_streams);
    const Common all{in[0].stride == 0 && in[1].stride == 0, a[0], b[0]};
    Line0 line0(parent, all, out);
    Line1 line1(parent, all, out);
    Line2 line2(parent, all, out);
    const auto with = [&](int line, const auto& body) {
        if (line == 0) return body(line0);
        if (line == 1) return body(line1);
        body(line2);
    };
    walk(layout, begin, end, [&](uint64_t first, uint64_t at, uint64_t count) {
        if (all.same) return with(which(all.a, all.b), [&](auto& line) { line.run(first, at, count); });
        for (uint64_t j = 0; j < count; ++j) {
            const double x = a[(at + j) * in[0].stride], y = b[(at + j) * in[1].stride];
            with(which(x, y), [&](auto& line) { line.add(first + j, at + j, x, y); });
        }
    });
    line0.flush();
    line1.flush();
    line2.flush();
}
template <bool logarithm>
inline void gammas(Key key, const Layout& layout, const Operand* in, uint64_t begin, uint64_t end,
                   double* out) {
    lines<Rejection<Gamma<logarithm, false>>, Rejection<Gamma<logarithm, true>>, FixedGamma<logarithm>>(
        key, layout, in, begin, end, out, [](double alpha, double) {
            return gamma_is_fixed(alpha) ? 2 : alpha < 1 ? 1 : 0;
        });
}

// Elements [begin, end) of the block at `out`, float64: element i draws from a stream of its own, i its
// global index.
inline void streams(Stream kind, Key key, const Layout& layout, const Operand* in, uint64_t begin,
                    uint64_t end, double* out) {
    if (begin == end) return;
    switch (kind) {
        case Stream::gamma: return gammas<false>(key, layout, in, begin, end, out);
        case Stream::log_gamma: return gammas<true>(key, layout, in, begin, end, out);
        case Stream::poisson:
            return lines<Inversion<PoissonInversion>, Rejection<PoissonRejection>, FixedGamma<false>>(
                key, layout, in, begin, end, out,
                [](double mean, double) { return poisson_inverts(mean) ? 0 : 1; });
        case Stream::binomial:
            return lines<Inversion<BinomialInversion>, Rejection<BinomialRejection>, FixedGamma<false>>(
                key, layout, in, begin, end, out,
                [](double n, double p) { return binomial_inverts(n, p) ? 0 : 1; });
    }
}

}  // namespace
}  // namespace spmdx
