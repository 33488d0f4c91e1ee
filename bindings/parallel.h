// A loop over [0, size) in equal pieces, on threads that sleep between loops. None spins beside the ranks of
// a program; a forked process begins with none.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace spmdx {

inline std::atomic<int> thread_count{static_cast<int>(std::max(1u, std::thread::hardware_concurrency()))};

// Helpers that take pieces of whatever loops are running; who called takes pieces as well, so that a loop
// ends even where no helper ever comes.
class Helpers {
 public:
    // run(i) for i in [0, pieces), on at most so many threads. Throws what a piece has thrown, when all have
    // ended: until then they use what the caller lends them.
    void run(uint64_t pieces, const std::function<void(uint64_t)>& piece) {
        Loop loop{&piece, pieces, 0, 0, nullptr};
        {
            const std::lock_guard<std::mutex> hold(mutex_);
            loops_.push_back(&loop);
            start(wanted_ += pieces - 1);
        }
        wake_.notify_all();
        std::unique_lock<std::mutex> hold(mutex_);
        while (loop.next < loop.pieces) take(loop, hold);
        done_.wait(hold, [&] { return loop.running == 0; });
        wanted_ -= pieces - 1;
        if (loop.thrown) std::rethrow_exception(loop.thrown);
    }

    // This process's; never destroyed, for helpers wait in it until the process ends.
    static Helpers& here() {
        static std::atomic<Helpers*> current{nullptr};
        static std::mutex making;
        Helpers* found = current.load();
        if (found && found->process_ == getpid()) return *found;
        const std::lock_guard<std::mutex> hold(making);
        found = current.load();
        if (!found || found->process_ != getpid()) current.store(found = new Helpers);
        return *found;
    }

 private:
    struct Loop {
        const std::function<void(uint64_t)>* piece;
        uint64_t pieces, next, running;
        std::exception_ptr thrown;
    };

    void start(uint64_t wanted) {
        try {
            for (; helpers_ < wanted; ++helpers_) std::thread([this] { help(); }).detach();
        } catch (const std::system_error&) {
            // The system gives no more threads: those that there are do the rest.
        }
    }

    void help() {
        std::unique_lock<std::mutex> hold(mutex_);
        for (;;) {
            wake_.wait(hold, [&] { return !loops_.empty(); });
            take(*loops_.front(), hold);
        }
    }

    // One piece, without the lock; a loop whose pieces are all taken leaves the list.
    void take(Loop& loop, std::unique_lock<std::mutex>& hold) {
        const uint64_t mine = loop.next++;
        ++loop.running;
        if (loop.next == loop.pieces) loops_.erase(std::find(loops_.begin(), loops_.end(), &loop));
        hold.unlock();
        std::exception_ptr thrown;
        try {
            (*loop.piece)(mine);
        } catch (...) {  // such as std::bad_alloc: on a helper it would end the process
            thrown = std::current_exception();
        }
        hold.lock();
        if (thrown) loop.thrown = thrown;
        if (--loop.running == 0 && loop.next == loop.pieces) done_.notify_all();
    }

    std::mutex mutex_;
    std::condition_variable wake_, done_;
    std::vector<Loop*> loops_;
    uint64_t helpers_ = 0, wanted_ = 0;
    const pid_t process_ = getpid();
};

template <class Body>  // body(begin, end)
void parallel(uint64_t size, uint64_t grain, const Body& body) {
    const uint64_t pieces =
        std::min<uint64_t>(uint64_t(thread_count.load()), std::max<uint64_t>(1, size / grain));
    const auto edge = [&](uint64_t i) { return size / pieces * i + std::min(i, size % pieces); };
    if (pieces == 1) return body(uint64_t(0), size);
    Helpers::here().run(pieces, [&](uint64_t i) { body(edge(i), edge(i + 1)); });
}

// Memory from a cache line's start on.
template <class T>
struct Room {
    T* const data;
    explicit Room(int64_t n)
        : data(static_cast<T*>(::operator new(size_t(n) * sizeof(T), std::align_val_t(64)))) {}
    ~Room() { ::operator delete(data, std::align_val_t(64)); }
    Room(const Room&) = delete;
};

}  // namespace spmdx
