// A barrier over memory that the ranks of one node share, which tells of ranks that will never come.
#pragma once

#include <pybind11/pybind11.h>
#include <sched.h>

#include <atomic>
#include <mutex>
#include <vector>

#include "cuda/portable.h"

namespace spmdx {

// Thrown by those who wait for a rank that has come to the end of its program.
struct Ended {
    int member;
};

// The slots of this process, in every barrier that it takes part in: at its end it says so in all of them.
class OwnSlots {
 public:
    static constexpr uint64_t ended = uint64_t{1} << 63;

    void add(uint64_t* slot) {
        const std::lock_guard<std::mutex> guard(mutex_);
        slots_.push_back(slot);
    }
    void say_ended() {
        const std::lock_guard<std::mutex> guard(mutex_);
        for (uint64_t* const slot : slots_) __atomic_fetch_or(slot, ended, __ATOMIC_RELEASE);
    }

 private:
    std::mutex mutex_;
    std::vector<uint64_t*> slots_;
};
inline OwnSlots own_slots{};

// A 64-bit epoch for each rank, 64 bytes apart so that no two share a cache line, zero at first. Each rank
// raises its own and waits for all the others: what a rank wrote before is then visible to all. The memory
// stays mapped to the end of the process.
struct Slots {
    char* base;
    int rank, size;

    uint64_t* of(int i) const { return reinterpret_cast<uint64_t*>(base + 64 * i); }

    void arrive(uint64_t epoch) const { __atomic_store_n(of(rank), epoch, __ATOMIC_RELEASE); }

    // Without the GIL. Spinning is short, for there may be more ranks than cores.
    void wait(uint64_t epoch, int spins) const {
        for (int other = 0; other < size; ++other) {
            for (int64_t tries = 0;; ++tries) {
                const uint64_t seen = __atomic_load_n(of(other), __ATOMIC_ACQUIRE);
                if ((seen & ~OwnSlots::ended) >= epoch) break;
                if (seen & OwnSlots::ended) throw Ended{other};
                if (tries < spins) {
                    SPMDX_PAUSE();
                    continue;
                }
                sched_yield();
                if (tries % 65536 == 0) {  // an interrupt ends the wait
                    pybind11::gil_scoped_acquire acquire;
                    if (PyErr_CheckSignals()) throw pybind11::error_already_set();
                }
            }
        }
    }
};

}  // namespace spmdx
