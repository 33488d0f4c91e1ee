// A loop over [0, size) in equal pieces, one thread each. Threads are started for the call: they cost about
// 20 us each, which the grain hides, and none is left spinning beside the ranks of a program or lost in a
// fork.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

namespace spmdx {

inline std::atomic<int> thread_count{static_cast<int>(std::max(1u, std::thread::hardware_concurrency()))};

template <class Body>  // body(begin, end)
void parallel(uint64_t size, uint64_t grain, const Body& body) {
    const uint64_t pieces =
        std::min<uint64_t>(uint64_t(thread_count.load()), std::max<uint64_t>(1, size / grain));
    const auto edge = [&](uint64_t i) { return size / pieces * i + std::min(i, size % pieces); };
    std::vector<std::thread> threads;
    uint64_t started = 1;
    try {
        for (; started < pieces; ++started) threads.emplace_back(body, edge(started), edge(started + 1));
    } catch (const std::system_error&) {
        // The system gives no more threads: this one does the rest.
    }
    body(edge(0), edge(1));
    if (started < pieces) body(edge(started), size);
    for (auto& thread : threads) thread.join();
}

}  // namespace spmdx
