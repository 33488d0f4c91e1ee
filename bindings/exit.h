// The end of a process that is one rank of several.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#include "bindings/barrier.h"

namespace spmdx {

struct Ending {
    int (*abort)(intptr_t, int);
    int (*finalize)();
    int (*finalized)(int*);
    intptr_t comm;  // MPI_COMM_WORLD, an int under MPICH and a pointer under Open MPI
};

inline Ending ending{};

inline void end_run(int status, void*) {
    int done = 0;
    ending.finalized(&done);
    if (done) return;
    if (!status) {
        own_slots.say_ended();
        ending.finalize();
        return;
    }
    usleep(300000);  // a launcher throws away what it has not read when a rank aborts
    ending.abort(ending.comm, status);
}

// At exit(status), finalize MPI if the status is 0 and abort every rank otherwise. MPI_Finalize waits for the
// other ranks, and only exit() itself knows the status that a SystemExit carries: Python's own exit functions
// come before it. False where the C library cannot tell the status.
inline bool end_together(uintptr_t abort, uintptr_t finalize, uintptr_t finalized, intptr_t comm) {
#ifdef __GLIBC__
    ending = {reinterpret_cast<int (*)(intptr_t, int)>(abort), reinterpret_cast<int (*)()>(finalize),
              reinterpret_cast<int (*)(int*)>(finalized), comm};
    return on_exit(end_run, nullptr) == 0;
#else
    (void)abort, (void)finalize, (void)finalized, (void)comm;
    return false;
#endif
}

}  // namespace spmdx
