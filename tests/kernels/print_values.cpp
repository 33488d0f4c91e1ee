// Prints a checksum of what every kernel gives, one line each, from every build of the kernels that this
// processor runs, the build's name first: all must be equal. Attention is left out, whose order of additions
// is that of the registers.
#include <cstdio>
#include <vector>

#include "bindings/dispatch.h"

using namespace spmdx;

namespace {

using Doubles = std::vector<double>;
using Floats = std::vector<float>;

constexpr int sizes[] = {1, 2, 4, 8, 2, 2, 4, 8, 8, 16};  // of Type
constexpr Key keys[] = {{1, 2, 3, 4, false}, {0x12345678u, 0x9ABCDEF0u, 0, 0, true}};
constexpr uint64_t points = 1'000'003, odd = 777;  // where a second call goes on

class Printer {
    const char* build_;

 public:
    explicit Printer(const char* build) : build_(build) {}
    template <class T>
    void operator()(const char* what, const T* data, uint64_t count,
                    const std::vector<double>& numbers = {}) const {
        uint64_t sum = 0xCBF29CE484222325ull;  // FNV-1a
        for (uint64_t i = 0; i < count * sizeof(T); ++i)
            sum = (sum ^ reinterpret_cast<const unsigned char*>(data)[i]) * 0x100000001B3ull;
        std::printf("%s %s", build_, what);
        for (const double number : numbers) std::printf(" %.15g", number);
        std::printf(" %016llx\n", static_cast<unsigned long long>(sum));
    }
};

// Numbers spread over [low, high), the same on every processor.
template <class T>
std::vector<T> spread_over(uint64_t count, double low, double high, uint64_t seed = 1) {
    std::vector<T> x(count);
    for (uint64_t i = 0; i < count; ++i) {
        uint64_t z = (i + seed * count + 1) * 0x9E3779B97F4A7C15ull;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ z >> 27) * 0x94D049BB133111EBull;
        x[i] = T(low + (high - low) * (double(z >> 11) * 0x1p-53));
    }
    return x;
}

// Rows of a block, short ones and long ones, in the middle of an array of more than 2**34 elements.
struct Block {
    const Interval rows[2] = {{3, 5}, {9, 10}},
                   columns[2] = {{1u << 20, (1u << 20) + 11}, {(1u << 21) + 1, (1u << 21) + 1501}};
    Layout layout{};
    Block() {
        layout.outer = 1;
        layout.intervals[0] = rows;
        layout.intervals[1] = columns;
        layout.counts[0] = layout.counts[1] = 2;
        layout.lengths[0] = 3;
        layout.lengths[1] = 1511;
        layout.strides[0] = 1ull << 33;
        layout.strides[1] = 1;
        layout.size = 3 * 1511;
    }
};
const Block block;
const Layout& layout = block.layout;
const uint64_t n = layout.size;

void print_random(const Build& build, const Printer& print, const Key& key) {
    std::vector<uint64_t> out(2 * n);
    const auto bytes = reinterpret_cast<const uint8_t*>(out.data());
    for (int kind = 0; kind <= int(Kind::open64); ++kind)
        for (int type = 0; type <= int(Type::c128); ++type)
            for (const uint64_t span : {uint64_t(0), uint64_t(1000), uint64_t(1) << 40}) {
                if (span && Kind(kind) != Kind::randint) break;
                const Draw draw{Kind(kind), Type(type), key, -1.0, 3.0, 1.5, 7, span, 0.3f, -2.0, 1.0};
                if (!build.fill(draw, layout, 0, odd, out.data())) break;
                build.fill(draw, layout, odd, n, out.data());
                print("fill", bytes, n * uint64_t(sizes[type]),
                      {double(key.threefry), double(kind), double(type), double(span)});
            }
    // Dropout of numbers, whose parts are floats of 16 bits of every kind.
    std::vector<uint64_t> x(2 * n);
    for (uint64_t i = 0; i < 2 * n; ++i) {
        const double value = (double(i / 2) - 2000.0) / 7;
        x[i] = (bit_cast<uint64_t>(value) & ~0xFFFFFFFFull) | bit_cast<uint32_t>(float(value));
    }
    for (const Type type : {Type::f16, Type::bf16, Type::f32, Type::f64, Type::c64, Type::c128}) {
        const bool wide = type == Type::f64 || type == Type::c128;
        const Drop drop{type, key, 0.7f, wide ? 1 / 0.7 : double(1 / 0.7f)};
        build.drop(drop, layout, x.data(), 0, odd, out.data());
        build.drop(drop, layout, x.data(), odd, n, out.data());
        print("drop", bytes, n * uint64_t(sizes[int(type)]), {double(key.threefry), double(type)});
    }
}

void print_streams(const Build& build, const Printer& print, const Key& key) {
    const double ones[][2] = {{0.3, 0.3}, {2.5, 2.5}, {40.0, 0.6}, {4000.0, 0.7}, {1e5, 1e-5}};
    Doubles counts(n), eighths(n), chances(n), out(n);
    for (uint64_t i = 0; i < n; ++i) {
        counts[i] = double(i);
        eighths[i] = double(i) / 8;
        chances[i] = double(i % 97) / 97;
    }
    for (const Stream kind : {Stream::gamma, Stream::log_gamma, Stream::poisson, Stream::binomial}) {
        const bool binomial = kind == Stream::binomial;
        const auto run = [&](const double* a, const double* b, uint64_t stride, double shown) {
            const Operand in[] = {{a, stride}, {b, stride}, {a, stride}, {a, stride}};
            build.streams(kind, key, layout, in, 0, odd, out.data());
            build.streams(kind, key, layout, in, odd, n, out.data());
            print("streams", out.data(), n, {double(key.threefry), double(kind), shown});
        };
        for (const auto& pair : ones) {
            const double whole = binomial ? double(uint64_t(pair[0])) : pair[0];
            run(&whole, &pair[1], 0, pair[0]);
        }
        run(binomial ? counts.data() : eighths.data(), chances.data(), 1, -1);
    }
}

template <class T>
void print_map(const Build& build, const Printer& print, Function function,
               const std::vector<std::vector<T>>& inputs) {
    Operand in[4];
    for (size_t i = 0; i < 4; ++i) in[i] = {inputs[i < inputs.size() ? i : 0].data(), 1};
    const uint64_t count = inputs[0].size();
    std::vector<T> out(count);
    build.map(function, out.data(), in, 0, odd);
    build.map(function, out.data(), in, odd, count);
    print("map", out.data(), count, {double(function)});
}

void print_functions(const Build& build, const Printer& print) {
    const uint64_t some = 10'007;
    const auto run = [&](Function function, const auto& first, const auto&... others) {
        print_map(build, print, function, std::vector<std::decay_t<decltype(first)>>{first, others...});
    };
    using Words = std::vector<uint64_t>;
    const Doubles units = spread_over<double>(some, 0, 1);
    const Floats units32 = spread_over<float>(some, 0, 0.999);
    run(Function::exp32, spread_over<float>(points, -110, 89));
    run(Function::exp64, spread_over<double>(points, -750, 710));
    run(Function::log64, spread_over<double>(points, 1e-300, 4));
    run(Function::log1p, spread_over<double>(some, -0.99, 3));
    run(Function::ndtr, spread_over<double>(some, -40, 9));
    run(Function::ndtri, spread_over<double>(some, 1e-9, 1));
    run(Function::between32, units32, units32, units32, Floats(some, 1.5f));
    run(Function::between64, units, units, units, Doubles(some, 1.5));
    run(Function::truncated, units, spread_over<double>(some, -9, 1), spread_over<double>(some, 1, 7));
    Words a(some), b(some);
    for (uint64_t i = 0; i < some; ++i) {
        a[i] = bit_cast<uint64_t>(units[i]) * 0x9E3779B97F4A7C15ull;
        b[i] = i % 5 * a[i] * a[i];
    }
    run(Function::multiply_high, a, b);
    Doubles counts(some);
    for (uint64_t i = 0; i < some; ++i) counts[i] = double(i % 1000);
    run(Function::log_poisson, counts, spread_over<double>(some, 0.1, 900));
    run(Function::log_binomial, counts, Doubles(some, 1000.0), units);

    Floats x(points), y(2 * points);
    Doubles x64(points), y64(2 * points);
    std::vector<uint32_t> angle(points);
    std::vector<uint64_t> angle64(points);
    for (uint64_t i = 0; i < points; ++i) {  // every positive normal float32, but for a stride
        x[i] = bit_cast<float>(0x00800000u + uint32_t(i) * (0x7F000000u / uint32_t(points)));
        x64[i] = bit_cast<double>(0x0010000000000000ull + i * (0x7FE0000000000000ull / points));
        angle[i] = uint32_t(i) * 4295u;
        angle64[i] = i * 0x0020000000000000ull / points;
    }
    build.log32(x.data(), y.data(), points);
    print("log32", y.data(), points);
    build.log64(x64.data(), y64.data(), points);
    print("log64", y64.data(), points);
    build.sincos32(angle.data(), y.data(), points);
    print("sincos32", y.data(), 2 * points);
    build.sincos64(angle64.data(), y64.data(), points);
    print("sincos64", y64.data(), 2 * points);
}

template <class T>
void print_neural(const Build& build, const Printer& print, const Neural<T>& neural) {
    constexpr bool wide = sizeof(T) == 8;
    const uint64_t count = 10'007;
    const auto x = spread_over<T>(count, -9, 9), y = spread_over<T>(count, 0.1, 2, 2),
               z = spread_over<T>(count, -3, 3, 3);
    std::vector<T> out(count);
    for (int which = 0; which <= int(Activation::adamw_step); ++which) {
        const void* const in[] = {x.data(), y.data(), z.data()};
        const Numbers numbers{0.9, 0.3, 1e-3, 0.01};
        build.activate(Activation(which), wide, out.data(), in, numbers, 0, odd);
        build.activate(Activation(which), wide, out.data(), in, numbers, odd, count);
        print("activate", out.data(), count, {double(which), double(wide)});
    }
    for (const int64_t width : {1, 7, 16, 131})
        for (const bool centered : {false, true}) {
            const uint64_t rows = count / uint64_t(width);
            const Norm<T> norm{width, T(1e-3), centered, x.data(), y.data(), z.data(), z.data(), out.data()};
            neural.norm(norm, 0, rows);
            print("norm", out.data(), rows * uint64_t(width),
                  {double(width), double(centered), double(wide)});
            const auto n = uint64_t(width);
            std::vector<T> to_scale(n), to_bias(n);
            neural.norm_back(norm, to_scale.data(), to_bias.data(), 0, rows);
            print("norm_back", out.data(), rows * uint64_t(width),
                  {double(width), double(centered), double(wide)});
            print("norm_scale_back", to_scale.data(), uint64_t(width),
                  {double(width), double(centered), double(wide)});
            print("sum_rows", to_bias.data(), uint64_t(width), {double(width), double(wide)});
            const Biased<T> biased{width, x.data(), y.data(), z.data(), out.data()};
            neural.bias_gelu(biased, 0, rows);
            print("bias_gelu", out.data(), rows * uint64_t(width), {double(width), double(wide)});
            neural.bias_gelu_back(biased, to_bias.data(), 0, rows);
            print("bias_gelu_back", out.data(), rows * uint64_t(width), {double(width), double(wide)});
            std::vector<T> stream(count), to_x(count), to_added(n);
            const uint64_t fewer = layout.size / n;
            const Drop drop{wide ? Type::f64 : Type::f32, keys[0], 0.7f, wide ? 1 / 0.7 : double(1 / 0.7f)};
            for (const Drop* dropped : {static_cast<const Drop*>(nullptr), &drop}) {
                AddNorm<T> of{norm,          x.data(),    y.data(), z.data(), y.data(),
                              stream.data(), to_x.data(), dropped,  &layout};
                of.norm.x = stream.data();
                neural.add_norm(of, 0, fewer);
                const std::initializer_list<double> told{double(width), double(centered), double(wide),
                                                         double(dropped != nullptr)};
                print("stream", stream.data(), fewer * n, told);
                print("add_norm", out.data(), fewer * n, told);
                neural.add_norm_back(of, to_scale.data(), to_bias.data(), to_added.data(), 0, fewer);
                print("add_norm_back", out.data(), fewer * n, told);
                print("add_norm_x_back", to_x.data(), fewer * n, told);
                for (const std::vector<T>* each : {&to_scale, &to_bias, &to_added})
                    print("add_norm_sums", each->data(), n, told);
            }
        }
    for (const int64_t width : {1, 7, 16, 131})
        for (const bool logarithm : {false, true}) {
            const uint64_t rows = count / uint64_t(width), size = rows * uint64_t(width);
            std::vector<T> back(count);
            neural.softmax({width, logarithm, x.data(), nullptr, out.data()}, 0, rows / 3);
            neural.softmax({width, logarithm, x.data(), nullptr, out.data()}, rows / 3, rows);
            print("softmax", out.data(), size, {double(width), double(logarithm), double(wide)});
            neural.softmax_back({width, logarithm, out.data(), z.data(), back.data()}, 0, rows);
            print("softmax_back", back.data(), size, {double(width), double(logarithm), double(wide)});
        }
    for (const int64_t inner : {3, 16, 37})
        for (const bool logarithm : {false, true}) {
            const int64_t n = 70;
            const uint64_t matrices = count / uint64_t(n * inner), size = matrices * uint64_t(n * inner);
            std::vector<T> back(count), room(2 * count + 32 * uint64_t(n));
            const Softmax<T> of{n, logarithm, x.data(), nullptr, out.data(), inner};
            const uint64_t parts = matrices * uint64_t(neural.softmax_parts(of).each);
            neural.softmax_columns(of, 0, parts / 3, room.data());
            neural.softmax_columns(of, parts / 3, parts, room.data());
            print("softmax_columns", out.data(), size, {double(inner), double(logarithm), double(wide)});
            const Softmax<T> of_back{n, logarithm, out.data(), z.data(), back.data(), inner};
            neural.softmax_columns(of_back, 0, parts, room.data());
            print("softmax_columns_back", back.data(), size,
                  {double(inner), double(logarithm), double(wide)});
        }
    for (const bool neighbours : {false, true}) {
        const Rotation<T> by{3, 7, 5, neighbours, x.data(), y.data(), z.data(), out.data()};
        neural.rotate(by, 0, count / 14);
        print("rotate", out.data(), count / 14 * 14, {double(neighbours), double(wide)});
    }
    std::vector<T> mean(count), square(count);
    for (const T* p : {static_cast<const T*>(nullptr), x.data()}) {
        neural.adam({x.data(), z.data(), y.data(), p, mean.data(), square.data(), out.data()},
                    {0.9, 0.1, 0.999, 0.001, 0.3, 0.5, 1e-8, 0.01}, 0, count);
        for (const std::vector<T>* each : {&mean, &square, &out})
            print("adam", each->data(), count, {double(wide), double(p != nullptr)});
    }
}

template <class T>
void print_reductions(const Build& build, const Printer& print, Number number) {
    constexpr bool whole = T(0.5) == T(0);
    const double reach = whole ? 2e9 : 3;
    std::vector<std::vector<T>> inputs;
    for (uint64_t i = 0; i < 5; ++i) inputs.push_back(spread_over<T>(5003, -reach, reach, i));
    std::vector<T> out(inputs[0].size());
    for (int op = 0; op <= int(Op::max); ++op)
        for (int count = 1; count <= 5; ++count) {
            std::vector<const void*> in;
            for (auto& each : inputs) {
                // A NaN comes out of min and max; sums and products of several do not say whose bits.
                if (!whole) each[100 + in.size()] = Op(op) < Op::min ? T(1) : T(__builtin_nan(""));
                in.push_back(each.data());
            }
            build.reduce(Op(op), number, out.data(), in.data(), count, 0, odd);
            build.reduce(Op(op), number, out.data(), in.data(), count, odd, out.size());
            print("reduce", out.data(), out.size(), {double(number), double(op), double(count)});
        }
}

}  // namespace

int main() {
    for (const Build* build : supported_builds()) {
        const Printer print(build->name);
        for (const Key& key : keys) {
            print_random(*build, print, key);
            print_streams(*build, print, key);
        }
        print_functions(*build, print);
        print_neural(*build, print, build->neural32);
        print_neural(*build, print, build->neural64);
        print_reductions<int32_t>(*build, print, Number::i32);
        print_reductions<int64_t>(*build, print, Number::i64);
        print_reductions<float>(*build, print, Number::f32);
        print_reductions<double>(*build, print, Number::f64);
    }
    return 0;
}
