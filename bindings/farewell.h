// What a rank that has ended tells those that wait for it, by MPI, for as long as there are others that have
// not.
#pragma once

#include <sched.h>
#include <unistd.h>

#include <cstdint>
#include <mutex>
#include <vector>

namespace spmdx {

// The collectives that this process has come to: rows of a group's key and a count, which Python writes.
class OwnCounts {
 public:
    void add(const int64_t* row) {
        const std::lock_guard<std::mutex> guard(mutex_);
        rows_.push_back(row);
    }
    int64_t of(int64_t key) {  // 0 for a group that was never made here
        const std::lock_guard<std::mutex> guard(mutex_);
        for (const int64_t* const row : rows_)
            if (row[0] == key) return row[1];
        return 0;
    }

 private:
    std::mutex mutex_;
    std::vector<const int64_t*> rows_;
};
inline OwnCounts own_counts{};

// MPI's functions, by address. A handle is an int under MPICH and a pointer under Open MPI: either is passed
// as a number as wide as a register. A status is larger in some than in others, and not looked into.
struct Farewell {
    using Handle = intptr_t;
    using Callback = int(Handle, int, void*, void*);
    using Copy = int(Handle, int, void*, void*, void*, int*);
    int (*create_keyval)(Copy*, Callback*, int*, void*);
    int (*set_attr)(Handle, int, void*);
    int (*ibarrier)(Handle, Handle*);
    int (*test)(Handle*, int*, void*);
    int (*improbe)(int, int, Handle, int*, Handle*, void*);
    int (*mrecv)(void*, int, Handle, Handle*, void*);
    int (*send)(const void*, int, Handle, int, int, Handle);
    Handle comm, byte;  // a communicator of all ranks, made for messages of ours alone; MPI_BYTE
    int any_source;

    static constexpr int question = 1, answer = 2;  // tags of messages of two numbers each
};

inline Farewell farewell{};

inline int no_copy(Farewell::Handle, int, void*, void*, void*, int* flag) {
    *flag = 0;
    return 0;
}

// Called by MPI_Finalize, before anything else, because it deletes the attributes of MPI_COMM_SELF: returns
// when every rank is here. Until then it answers whoever asks how many of a group's collectives this rank has
// come to.
inline int say_farewell(Farewell::Handle, int, void*, void*) {
    const Farewell& mpi = farewell;
    alignas(16) char status[256];
    const auto take = [&](int tag, int64_t (&message)[2]) {
        int found = 0;
        Farewell::Handle what{};
        return !mpi.improbe(mpi.any_source, tag, mpi.comm, &found, &what, status) && found &&
               !mpi.mrecv(message, sizeof message, mpi.byte, &what, status);
    };
    const auto take_all = [&](bool replies) {
        int64_t message[2];  // who asks, and of which group
        while (take(Farewell::question, message)) {
            if (!replies) continue;
            const int64_t reply[2] = {message[1], own_counts.of(message[1])};
            mpi.send(reply, sizeof reply, mpi.byte, static_cast<int>(message[0]), Farewell::answer, mpi.comm);
        }
        while (take(Farewell::answer, message)) continue;  // to a question of ours that no longer matters
    };
    // When all are here nobody waits for an answer. The second round is for those that were sent until then:
    // some libraries warn, as they end, of messages that nobody has taken.
    for (const bool all_here : {false, true}) {
        Farewell::Handle request{};
        if (mpi.ibarrier(mpi.comm, &request)) return 0;
        for (int tries = 0, done = 0; !done; ++tries) {
            if (mpi.test(&request, &done, status)) return 0;
            take_all(!all_here && !done);
            if (tries < 1000)
                sched_yield();
            else
                usleep(1000);
        }
    }
    return 0;
}

// Have MPI_Finalize call it, whoever calls that. Takes the addresses in the order of the struct.
inline bool farewell_at_end(const std::vector<uintptr_t>& addresses, uintptr_t self, uintptr_t comm,
                            uintptr_t byte, int any_source) {
    if (addresses.size() != 7) return false;
    Farewell& mpi = farewell;
    mpi.create_keyval = reinterpret_cast<decltype(mpi.create_keyval)>(addresses[0]);
    mpi.set_attr = reinterpret_cast<decltype(mpi.set_attr)>(addresses[1]);
    mpi.ibarrier = reinterpret_cast<decltype(mpi.ibarrier)>(addresses[2]);
    mpi.test = reinterpret_cast<decltype(mpi.test)>(addresses[3]);
    mpi.improbe = reinterpret_cast<decltype(mpi.improbe)>(addresses[4]);
    mpi.mrecv = reinterpret_cast<decltype(mpi.mrecv)>(addresses[5]);
    mpi.send = reinterpret_cast<decltype(mpi.send)>(addresses[6]);
    mpi.comm = static_cast<Farewell::Handle>(comm);
    mpi.byte = static_cast<Farewell::Handle>(byte);
    mpi.any_source = any_source;
    int keyval = 0;
    return !mpi.create_keyval(no_copy, say_farewell, &keyval, nullptr) &&
           !mpi.set_attr(static_cast<Farewell::Handle>(self), keyval, nullptr);
}

}  // namespace spmdx
