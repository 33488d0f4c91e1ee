// Fills a block with random values on a CPU: tiles of blocks of the generator, in loops that the compiler
// vectorises.
#pragma once

#include <type_traits>

#include "continuous.h"
#include "jax.h"
#include "layout.h"
#include "tile.h"

namespace spmdx {

enum class Kind {
    bits,
    uniform,
    unit,  // float32 in [0, 1), of 24 bits from either generator
    normal,
    randint,
    bernoulli,
    exponential,
    gumbel,
    rayleigh,
    laplace,
    logistic,
    cauchy,
    truncated_normal,
    complex_normal,
    open32,
    open64  // uniform in (0, 1], float64 of 32 or 53 bits
};
enum class Type { u8, u16, u32, u64, f16, bf16, f32, f64, c64, c128 };

// What to draw: the fields after `key` are those of the distribution.
struct Draw {
    Kind kind;
    Type type;
    Key key;
    double low, span, last;              // uniform
    uint64_t integer_low, integer_span;  // randint; a span of 0 is 2**64
    float p;                             // bernoulli
    double from, to;                     // truncated_normal
};

namespace {

template <class D>
class Filler {
    using Value = typename D::Value;
    static constexpr int tile = tile_blocks;
    static constexpr int per_block = 4 / D::words * D::values;  // elements
    static constexpr uint64_t cut = 16;  // a staged batch is rounded up to this many blocks

    using Take = Taking<D>;

    const D dist_;
    Key keys_[2];
    int staged_ = 0, segments_ = 0;
    alignas(64) uint64_t block_[tile] = {};
    alignas(64) uint32_t words_[4 * tile];
    alignas(64) Value values_[per_block * tile];
    struct Segment {
        Value* target;
        int from, count;  // elements of values_
    } segment_[tile];

    void draw(const uint64_t* numbers, uint64_t blocks) {
        if (keys_[0].threefry)
            threefry_tile<typename Take::How, Take::wide>(keys_, numbers, blocks, words_);
        else
            philox_tile(keys_[0], numbers, blocks, words_);
    }
    __attribute__((noinline)) void transform(uint64_t blocks, Value* out) const {
        const uint64_t steps = blocks * 4 / D::words;
        SPMDX_FOR (uint64_t i = 0; i < steps; ++i) dist_.step(words_ + D::words * i, out + D::values * i);
    }

    // `count` elements from element `from` of a block on, for `target`: they wait until a tile is full.
    void stage(uint64_t block, int from, int count, Value* target) {
        const int blocks = (from + count + per_block - 1) / per_block;
        if (staged_ + blocks > tile) flush();
        for (int j = 0; j < blocks; ++j) block_[staged_ + j] = block + uint64_t(j);
        segment_[segments_++] = {target, staged_ * per_block + from, count};
        staged_ += blocks;
    }

    void whole(uint64_t block, uint64_t blocks, Value* out) {
        uint64_t numbers[tile];
        for (uint64_t j = 0; j < blocks; ++j) numbers[j] = block + j;
        draw(numbers, blocks);
        transform(blocks, out);
    }

 public:
    Filler(const D& dist, Key key) : dist_(dist), keys_{key, key} {
        if (Take::How::keys == 2) {
            keys_[0] = fold_in(key, 0);
            keys_[1] = fold_in(key, 1);
        }
    }

    void flush() {
        const uint64_t blocks = (uint64_t(staged_) + cut - 1) / cut * cut;
        for (uint64_t j = uint64_t(staged_); j < blocks && j < tile; ++j) block_[j] = 0;
        draw(block_, blocks);
        transform(blocks, values_);
        for (int j = 0; j < segments_; ++j) {
            const Segment& each = segment_[j];
            for (int e = 0; e < each.count; ++e) each.target[e] = values_[each.from + e];
        }
        staged_ = segments_ = 0;
    }

    void run(uint64_t first, uint64_t count, Value* out) {
        uint64_t block = first / per_block;
        const int from = int(first % per_block);
        if (count <= cut * per_block) return stage(block, from, int(count), out);
        if (from) {
            const int room = per_block - from;
            stage(block++, from, room, out);
            out += room;
            count -= uint64_t(room);
        }
        while (const uint64_t blocks = count / per_block / cut * cut) {
            const uint64_t now = blocks < tile ? blocks : tile;
            whole(block, now, out);
            block += now;
            out += now * per_block;
            count -= now * per_block;
        }
        if (count) stage(block, 0, int(count), out);
    }
};

template <class D>
void fill_with(const D& dist, Key key, const Layout& layout, uint64_t begin, uint64_t end, void* out) {
    Filler<D> filler(dist, key);
    walk(layout, begin, end, [&](uint64_t first, uint64_t at, uint64_t count) {
        filler.run(first, count, static_cast<typename D::Value*>(out) + at);
    });
    filler.flush();
}

template <class T, class Real, class From>
Uniform<T, Real, From> uniform_of(const Draw& draw) {
    return {Real(draw.low), Real(draw.span), Real(draw.last)};
}

// What cuda/jax.h divides by, 2 or more.
template <class U>
Modulus<U> modulus(U divisor) {
    typedef unsigned __int128 Wide;
    constexpr int width = 8 * sizeof(U);
    int log = 0;
    while (divisor >> 1 >> log) ++log;
    if ((divisor & (divisor - 1)) == 0) return {divisor, 0, log - 1};
    const Wide power = Wide(1) << (width + log);  // twice this, less than 2**(2 width), may not fit
    const Wide half = power / divisor, rest = power % divisor;
    return {divisor, U(2 * half + (2 * rest >= divisor) + 1), log};
}
template <class T, class U>
JaxRandInt<T, U, false> jax_integers(const Draw& draw) {
    const U span = U(draw.integer_span), root = U((U(1) << (4 * sizeof(U))) % span);
    return {U(draw.integer_low), U(U(root * root) % span), modulus(span)};
}

// Fills elements [begin, end) of the block at `out`. False where the distribution has no such type.
inline bool fill(const Draw& draw, const Layout& layout, uint64_t begin, uint64_t end, void* out) {
    const auto with = [&](const auto& dist) {
        fill_with(dist, draw.key, layout, begin, end, out);
        return true;
    };
    const auto floats = [&](const auto& single, const auto& twofold) {
        if (draw.type == Type::f32) return with(single);
        return draw.type == Type::f64 && with(twofold);
    };
    const bool jax = draw.key.threefry;
    const auto integers = [&](auto value) {
        using T = decltype(value);
        using U = typename std::conditional<sizeof(T) == 8, uint64_t, uint32_t>::type;
        const uint64_t low = draw.integer_low, span = draw.integer_span;
        if (draw.kind == Kind::bits) return jax ? with(JaxBits<T>()) : with(Bits<T>());
        if (jax && U(span) != 1) {
            if (U(span)) return with(jax_integers<T, U>(draw));
            return with(JaxRandInt<T, U, true>{U(low), 0, {}});
        }
        return span && !(span >> 32) ? with(SmallRandInt<T>{low, span}) : with(RandInt<T>{low, span});
    };
    const auto uniform = [&](auto value, auto real) {
        using T = decltype(value);
        using Real = decltype(real);
        return jax ? with(uniform_of<T, Real, JaxUnit<T>>(draw))
                   : with(uniform_of<T, Real, Unit<Real>>(draw));
    };
    switch (draw.kind) {
        case Kind::bits:
        case Kind::randint:
            switch (draw.type) {
                case Type::u8: return integers(uint8_t());
                case Type::u16: return integers(uint16_t());
                case Type::u32: return integers(uint32_t());
                case Type::u64: return integers(uint64_t());
                default: return false;
            }
        case Kind::uniform:
            switch (draw.type) {
                case Type::f16: return uniform(Half(), float());
                case Type::bf16: return uniform(BFloat16(), float());
                case Type::f32: return uniform(float(), float());
                case Type::f64: return uniform(double(), double());
                default: return false;
            }
        case Kind::unit: return draw.type == Type::f32 && with(Uniform<float, float>{0, 1, 1});
        case Kind::normal:
            switch (draw.type) {
                case Type::f16: return with(Normal<Half>());
                case Type::bf16: return with(Normal<BFloat16>());
                case Type::f32: return with(Normal<float>());
                case Type::f64: return with(Normal<double>());
                default: return false;
            }
        case Kind::bernoulli: return draw.type == Type::u8 && with(Bernoulli{draw.p});
        case Kind::exponential: return floats(Inverse<Exponential, float>(), Inverse<Exponential, double>());
        case Kind::gumbel: return floats(Inverse<Gumbel, float>(), Inverse<Gumbel, double>());
        case Kind::rayleigh: return floats(Inverse<Rayleigh, float>(), Inverse<Rayleigh, double>());
        case Kind::laplace: return floats(Inverse<Laplace, float>(), Inverse<Laplace, double>());
        case Kind::logistic: return floats(Inverse<Logistic, float>(), Inverse<Logistic, double>());
        case Kind::cauchy: return floats(Cauchy<float>(), Cauchy<double>());
        case Kind::truncated_normal: {
            const Truncation bounds = truncation(draw.from, draw.to);
            return floats(TruncatedNormal<float>{bounds}, TruncatedNormal<double>{bounds});
        }
        case Kind::complex_normal:
            switch (draw.type) {
                case Type::c64: return with(ComplexNormal<float>());
                case Type::c128: return with(ComplexNormal<double>());
                default: return false;
            }
        case Kind::open32: return draw.type == Type::f64 && with(Open<float>());
        case Kind::open64: return draw.type == Type::f64 && with(Open<double>());
    }
    return false;
}

}  // namespace
}  // namespace spmdx
