// Parts of blocks as streams of bytes: boxes of C-contiguous arrays, one after another.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cuda/portable.h"

namespace spmdx {

// Long copies are written out. Where the C library's memcpy copies by `rep movsb`, some processors take five
// times as long for some alignments. With `past_caches`, what is written will not be read soon: it goes by
// the caches, and no line is fetched only to be overwritten.
template <bool past_caches>
inline void copy_long(char* to, const char* from, int64_t bytes) {
#if defined(__x86_64__)
    const int64_t head = std::min<int64_t>(bytes, -reinterpret_cast<intptr_t>(to) & 63);
    std::memcpy(to, from, size_t(head));
    to += head, from += head, bytes -= head;
    for (; bytes >= 64; to += 64, from += 64, bytes -= 64) {
        const auto* const in = reinterpret_cast<const __m128i*>(from);
        auto* const out = reinterpret_cast<__m128i*>(to);
        const __m128i line[] = {_mm_loadu_si128(in), _mm_loadu_si128(in + 1), _mm_loadu_si128(in + 2),
                                _mm_loadu_si128(in + 3)};
        for (int i = 0; i < 4; ++i) {
            if constexpr (past_caches)
                _mm_stream_si128(out + i, line[i]);
            else
                _mm_store_si128(out + i, line[i]);
        }
    }
#endif
    std::memcpy(to, from, size_t(bytes));
}

// After copies past the caches, before others are told that they are done.
inline void finish_copies() {
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

// A box of one array: rows of `run` contiguous bytes, and loops over them, the outermost first.
struct Box {
    static constexpr int most = 64;  // dimensions

    int array = 0;
    int64_t begin = 0, bytes = 0;  // in the stream
    int64_t offset = 0, run = 0;
    int loops = 0;
    std::vector<int64_t> count, stride;

    Box(int array, int64_t item, const std::vector<int64_t>& shape, const std::vector<int64_t>& start,
        const std::vector<int64_t>& size)
        : array(array), bytes(item), run(item) {
        bool whole = true;  // so far rows are contiguous
        int64_t step = item;
        for (int d = int(shape.size()) - 1; d >= 0; step *= shape[d], --d) {
            offset += start[d] * step;
            bytes *= size[d];
            if (whole)
                run *= size[d];
            else if (loops && stride.back() * count.back() == step)
                count.back() *= size[d];
            else if (size[d] != 1)
                count.push_back(size[d]), stride.push_back(step), ++loops;
            whole = whole && size[d] == shape[d];
        }
        std::reverse(count.begin(), count.end());
        std::reverse(stride.begin(), stride.end());
    }

    // Where a row begins in the array's bytes.
    int64_t row(int64_t number) const {
        int64_t at = offset;
        for (int d = loops - 1; d >= 0; number /= count[size_t(d)], --d)
            at += number % count[size_t(d)] * stride[size_t(d)];
        return at;
    }
};

enum class Way { pack, unpack };  // out of the blocks, into them

template <Way way, class T>
inline void copy_elements(char* block, int64_t stride, char* flat, int64_t rows) {
    for (int64_t i = 0; i < rows; ++i, block += stride, flat += sizeof(T)) {
        if constexpr (way == Way::pack)
            std::memcpy(flat, block, sizeof(T));
        else
            std::memcpy(block, flat, sizeof(T));
    }
}

template <Way way, bool past_caches>
inline void copy_row(char* block, char* flat, int64_t bytes) {
    char *const to = way == Way::pack ? flat : block, *const from = way == Way::pack ? block : flat;
    if (bytes >= 512)
        copy_long<past_caches>(to, from, bytes);
    else
        std::memcpy(to, from, size_t(bytes));
}

template <Way way, bool past_caches>
inline void copy_rows(char* block, int64_t stride, char* flat, int64_t run, int64_t rows) {
    switch (run) {
        case 1: return copy_elements<way, uint8_t>(block, stride, flat, rows);
        case 2: return copy_elements<way, uint16_t>(block, stride, flat, rows);
        case 4: return copy_elements<way, uint32_t>(block, stride, flat, rows);
        case 8: return copy_elements<way, uint64_t>(block, stride, flat, rows);
        case 16: return copy_elements<way, std::array<uint64_t, 2>>(block, stride, flat, rows);
    }
    for (int64_t i = 0; i < rows; ++i, block += stride, flat += run)
        copy_row<way, past_caches>(block, flat, run);
}

// `bytes` of a box, from its byte `at` on.
template <Way way, bool past_caches>
inline void copy_box(const Box& box, char* base, int64_t at, int64_t bytes, char* flat) {
    std::array<int64_t, Box::most> index{};
    char* block = base + box.offset;
    int64_t inside = at % box.run, row = at / box.run;
    for (int d = box.loops - 1; d >= 0; --d) {
        index[size_t(d)] = row % box.count[d];
        row /= box.count[d];
        block += index[size_t(d)] * box.stride[d];
    }
    const int last = box.loops - 1;
    while (bytes > 0) {
        if (last < 0 || inside || bytes < box.run) {  // part of a row
            const int64_t n = std::min(box.run - inside, bytes);
            copy_row<way, past_caches>(block + inside, flat, n);
            flat += n, bytes -= n;
            if (bytes == 0) return;
            inside = 0;
            ++index[size_t(last)];
            block += box.stride[last];
        } else {
            const int64_t rows = std::min(box.count[last] - index[size_t(last)], bytes / box.run);
            copy_rows<way, past_caches>(block, box.stride[last], flat, box.run, rows);
            flat += rows * box.run, bytes -= rows * box.run;
            index[size_t(last)] += rows;
            block += rows * box.stride[last];
        }
        for (int d = last; d > 0 && index[size_t(d)] == box.count[d]; --d) {
            block += box.stride[d - 1] - box.count[d] * box.stride[d];
            index[size_t(d)] = 0;
            ++index[size_t(d - 1)];
        }
    }
}

// What goes to, or comes from, one member.
struct Part {
    std::vector<Box> boxes;
    int64_t bytes = 0;

    void add(Box box) {
        if (box.bytes == 0) return;
        box.begin = bytes;
        bytes += box.bytes;
        boxes.push_back(std::move(box));
    }

    // Where the whole stream lies, if that is one stretch of memory.
    char* stretch(char* const* bases) const {
        return boxes.size() == 1 && boxes[0].loops == 0 ? bases[boxes[0].array] + boxes[0].offset : nullptr;
    }

    // `count` bytes from byte `from` on.
    void pack(char* const* bases, int64_t from, int64_t count, char* flat) const {
        copy<Way::pack, false>(bases, from, count, flat);
    }
    void unpack(char* const* bases, int64_t from, int64_t count, const char* flat, bool past_caches) const {
        char* const source = const_cast<char*>(flat);  // only read
        past_caches ? copy<Way::unpack, true>(bases, from, count, source)
                    : copy<Way::unpack, false>(bases, from, count, source);
    }

 private:
    template <Way way, bool past_caches>
    void copy(char* const* bases, int64_t from, int64_t count, char* flat) const {
        if (count <= 0) return;
        auto box = std::upper_bound(boxes.begin(), boxes.end(), from,
                                    [](int64_t at, const Box& each) { return at < each.begin; });
        for (--box; count > 0; ++box) {
            const int64_t at = from - box->begin, n = std::min(count, box->bytes - at);
            copy_box<way, past_caches>(*box, bases[box->array], at, n, flat);
            from += n, flat += n, count -= n;
        }
    }
};

// From one stream to another, `count` bytes from byte `from` of both.
inline void move_between(const Part& source, char* const* sources, const Part& target, char* const* targets,
                         int64_t from, int64_t count, bool past_caches) {
    if (count <= 0) return;
    if (char* const flat = source.stretch(sources)) {
        char* const same = target.stretch(targets);
        if (same != flat) target.unpack(targets, from, count, flat + from, past_caches);
        return;
    }
    if (char* const flat = past_caches ? nullptr : target.stretch(targets))
        return source.pack(sources, from, count, flat + from);
    alignas(64) std::array<char, 16384> between;
    for (const int64_t end = from + count; from < end;) {
        const int64_t n = std::min<int64_t>(int64_t(between.size()), end - from);
        source.pack(sources, from, n, between.data());
        target.unpack(targets, from, n, between.data(), past_caches);
        from += n;
    }
}

}  // namespace spmdx
