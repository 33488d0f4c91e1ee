// A barrier over memory that the ranks of one node share.
#pragma once

#include <pybind11/pybind11.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <stdexcept>

#include "cuda/portable.h"

namespace spmdx {

// A 64-bit epoch for each rank, 64 bytes apart so that no two share a cache line, zero at first. Each rank
// raises its own and waits for all the others: what a rank wrote before is then visible to all.
struct Slots {
    char* base;
    int rank, size;

    uint64_t* of(int i) const { return reinterpret_cast<uint64_t*>(base + 64 * i); }

    void arrive(uint64_t epoch) const { __atomic_store_n(of(rank), epoch, __ATOMIC_RELEASE); }

    // Without the GIL. Spinning is short, for there may be more ranks than cores. True once all have arrived;
    // False after `timeout` seconds: call again, with the same epoch, to go on waiting.
    bool wait(uint64_t epoch, int spins, double timeout) const {
        std::chrono::steady_clock::time_point start{};
        for (int other = 0; other < size; ++other) {
            for (int64_t tries = 0; __atomic_load_n(of(other), __ATOMIC_ACQUIRE) < epoch; ++tries) {
                if (tries < spins) {
                    SPMDX_PAUSE();
                    continue;
                }
                sched_yield();
                if (tries % 256) continue;
                const auto now = std::chrono::steady_clock::now();
                if (start.time_since_epoch().count() == 0) start = now;
                if (std::chrono::duration<double>(now - start).count() > timeout) return false;
                if (tries % 65536 == 0) {  // an interrupt ends the wait
                    pybind11::gil_scoped_acquire acquire;
                    if (PyErr_CheckSignals()) throw pybind11::error_already_set();
                }
            }
        }
        return true;
    }
};

inline bool arrive_and_wait(pybind11::object slots, int rank, int size, uint64_t epoch, double timeout,
                            int spins) {
    struct View {
        Py_buffer buffer;
        explicit View(PyObject* object) {
            if (PyObject_GetBuffer(object, &buffer, PyBUF_WRITABLE)) throw pybind11::error_already_set();
        }
        ~View() { PyBuffer_Release(&buffer); }
    } view(slots.ptr());
    if (view.buffer.len < 64 * pybind11::ssize_t(size) || rank < 0 || rank >= size ||
        reinterpret_cast<uintptr_t>(view.buffer.buf) % 8)
        throw std::invalid_argument(
            "the barrier needs 64 bytes per rank, aligned to 8, and 0 <= rank < size");
    const Slots all{static_cast<char*>(view.buffer.buf), rank, size};
    pybind11::gil_scoped_release release;
    all.arrive(epoch);
    return all.wait(epoch, spins, timeout);
}

}  // namespace spmdx
