// Prints a checksum of what every kernel gives: one line each, for whatever processor this is compiled for.
#include <cstdio>
#include <vector>

#include "bindings/build.h"

using namespace spmdx;

namespace {

uint64_t checksum(const void* data, uint64_t bytes) {  // FNV-1a
    uint64_t sum = 0xCBF29CE484222325ull;
    for (uint64_t i = 0; i < bytes; ++i)
        sum = (sum ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001B3ull;
    return sum;
}

}  // namespace

int main() {
    constexpr Build build = make_build("here");
    // Rows of a block: short ones and long ones, in the middle of a far larger array.
    const Interval rows[] = {{3, 5}, {9, 10}},
                   columns[] = {{1u << 20, (1u << 20) + 11}, {(1u << 21) + 1, (1u << 21) + 1501}};
    Layout layout{};
    layout.outer = 1;
    layout.intervals[0] = rows;
    layout.intervals[1] = columns;
    layout.counts[0] = layout.counts[1] = 2;
    layout.lengths[0] = 3;
    layout.lengths[1] = 1511;
    layout.strides[0] = 1ull << 33;
    layout.strides[1] = 1;
    layout.size = 3 * 1511;
    const uint64_t n = layout.size;
    const int sizes[] = {1, 2, 4, 8, 2, 2, 4, 8, 8, 16};  // of Type
    std::vector<uint64_t> out(2 * n);
    const Key keys[] = {{1, 2, 3, 4, false}, {0x12345678u, 0x9ABCDEF0u, 0, 0, true}};

    for (const Key& key : keys) {
        for (int kind = 0; kind <= int(Kind::open64); ++kind) {
            for (int type = 0; type <= int(Type::c128); ++type) {
                for (const uint64_t span : {uint64_t(0), uint64_t(1000), uint64_t(1) << 40}) {
                    Draw draw{Kind(kind), Type(type), key, -1.0, 3.0, 1.5, 7, span, 0.3f, -2.0, 1.0};
                    if (span && Kind(kind) != Kind::randint) break;
                    if (!build.fill(draw, layout, 0, n, out.data())) break;
                    std::printf("%d %d %d %llx %016llx\n", key.threefry, kind, type, (unsigned long long)span,
                                (unsigned long long)checksum(out.data(), n * uint64_t(sizes[type])));
                }
            }
        }
        const double ones[][2] = {{0.3, 0.3}, {2.5, 2.5}, {40.0, 0.6}, {4000.0, 0.7}, {1e5, 1e-5}};
        std::vector<double> spread(n), chances(n), values(n);
        for (uint64_t i = 0; i < n; ++i) {
            spread[i] = double(i) / 8;
            chances[i] = double(i % 97) / 97;
        }
        for (const Stream kind : {Stream::gamma, Stream::log_gamma, Stream::poisson, Stream::binomial}) {
            const auto shown = [&](const Operand* in, double a) {
                build.streams(kind, key, layout, in, 0, n, values.data());
                std::printf("stream %d %d %g %016llx\n", key.threefry, int(kind), a,
                            (unsigned long long)checksum(values.data(), 8 * n));
            };
            for (const auto& pair : ones) {
                const double whole = kind == Stream::binomial ? double(uint64_t(pair[0])) : pair[0];
                const Operand in[] = {{&whole, 0}, {&pair[1], 0}, {&whole, 0}, {&whole, 0}};
                shown(in, pair[0]);
            }
            std::vector<double> counts(n);
            for (uint64_t i = 0; i < n; ++i) counts[i] = double(i);
            const double* const first = kind == Stream::binomial ? counts.data() : spread.data();
            const Operand in[] = {{first, 1}, {chances.data(), 1}, {first, 1}, {first, 1}};
            shown(in, -1);
        }
        // Dropout of every bit pattern of 16 bits, and of numbers.
        std::vector<uint64_t> x(2 * n);
        for (uint64_t i = 0; i < n; ++i) {
            const double value = (double(i) - 2000.0) / 7;
            for (int part = 0; part < 2; ++part) {
                const uint64_t bits = bit_cast<uint64_t>(value);
                const uint32_t single = bit_cast<uint32_t>(float(value));
                reinterpret_cast<uint32_t*>(x.data())[4 * i + 2 * uint64_t(part)] = single;
                reinterpret_cast<uint32_t*>(x.data())[4 * i + 2 * uint64_t(part) + 1] = uint32_t(bits >> 32);
            }
        }
        for (const Type type : {Type::f16, Type::bf16, Type::f32, Type::f64, Type::c64, Type::c128}) {
            build.drop(
                {type, key, 0.7f, type == Type::f64 || type == Type::c128 ? 1 / 0.7 : double(1 / 0.7f)},
                layout, x.data(), 0, n, out.data());
            std::printf("drop %d %d %016llx\n", key.threefry, int(type),
                        (unsigned long long)checksum(out.data(), n * uint64_t(sizes[int(type)])));
        }
    }
    return 0;
}
