// Plays NCCL's part for ranks that are threads of one process, whose "devices" are the host's memory. It does
// what is asked when a group ends, and can be told to fail, to be slow, or never to be done.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

namespace {

struct Id {
    char bytes[128];
};
struct Config {
    std::size_t size;
    unsigned magic, version;
    int blocking;
};
using Sent = std::string;  // a copy of what a rank brings, who may have it overwritten in place
struct Meeting {
    std::vector<Sent> calls;
    int came = 0, left = 0;
};
struct World {
    int size = 0;
    std::map<long, std::shared_ptr<Meeting>> meetings;
    std::map<std::pair<int, int>, std::deque<std::string>> mail;
    std::map<long, std::map<int, std::tuple<int, int, struct Comm*>>> splits;
};
struct Comm {
    std::shared_ptr<World> world;
    int rank, size;
    long turn = 0, split = 0;
};

std::mutex lock;
std::condition_variable changed;
std::map<std::string, std::shared_ptr<World>> worlds;
std::map<std::string, std::pair<int, int>> failures;  // by function: a code, and after how many calls
int slow = 0, async_error = 0, known_version = 22700;
std::atomic<int> alive{0};
long ids = 0;
thread_local std::vector<std::function<void()>> group;
thread_local int depth = 0, left_to_wait = 0;

int entered(const char* name) {
    left_to_wait = slow;
    const std::lock_guard<std::mutex> held(lock);
    const auto found = failures.find(name);
    if (found == failures.end() || found->second.second-- > 0) return 0;
    const int code = found->second.first;
    failures.erase(found);
    return code;
}

template <class Wanted>
void until(std::unique_lock<std::mutex>& held, Wanted wanted) {
    changed.wait(held, wanted);
}

// Every rank comes with a call; `act` sees all of them, while all are there.
void meet(Comm* comm, const void* from, std::size_t bytes,
          const std::function<void(const std::vector<Sent>&)>& act) {
    std::unique_lock<std::mutex> held(lock);
    const long turn = comm->turn++;
    auto& kept = comm->world->meetings[turn];
    if (!kept) kept = std::make_shared<Meeting>();
    const auto held_on = kept;
    Meeting& meeting = *held_on;
    meeting.calls.resize(std::size_t(comm->size));
    meeting.calls[std::size_t(comm->rank)].assign(static_cast<const char*>(from), bytes);
    meeting.came++;
    changed.notify_all();
    until(held, [&] { return meeting.came == comm->size; });
    act(meeting.calls);
    meeting.left++;
    comm->world->meetings.erase(turn);
    changed.notify_all();
    until(held, [&] { return meeting.left == comm->size; });
}

int later(const char* name, std::function<void()> act) {
    if (const int code = entered(name)) return code;
    group.push_back(std::move(act));
    return 0;
}

std::size_t bytes_of(int type) {
    const std::size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return sizes[type];
}

template <class T>
void combine(void* to, const std::vector<Sent>& calls, std::size_t first, std::size_t count, int op) {
    std::vector<T> out(count);
    for (std::size_t k = 0; k < count; ++k) {
        T value = reinterpret_cast<const T*>(calls[0].data())[first + k];
        for (std::size_t i = 1; i < calls.size(); ++i) {
            const T next = reinterpret_cast<const T*>(calls[i].data())[first + k];
            value = op == 0 || op == 4 ? value + next
                    : op == 1          ? value * next
                    : op == 2          ? std::max(value, next)
                                       : std::min(value, next);
        }
        out[k] = op == 4 ? T(value / T(calls.size())) : value;
    }
    std::memcpy(to, out.data(), count * sizeof(T));
}

void reduced(void* to, const std::vector<Sent>& calls, std::size_t first, std::size_t count, int type,
             int op) {
    if (type == 7) combine<float>(to, calls, first, count, op);
    if (type == 8) combine<double>(to, calls, first, count, op);
    if (type == 2) combine<int>(to, calls, first, count, op);
}

}  // namespace

extern "C" {

void fake_fail(const char* name, int code, int after) { failures[name] = {code, after}; }
void fake_slow(int looks) { slow = looks; }
void fake_async(int code) { async_error = code; }
void fake_version(int version) { known_version = version; }
// Communicators made and not given back since the last time.
int fake_alive() { return alive.exchange(0); }

int ncclGetVersion(int* version) { return *version = known_version, 0; }
int ncclGetUniqueId(Id* id) {
    if (const int code = entered("ncclGetUniqueId")) return code;
    const std::lock_guard<std::mutex> held(lock);
    std::memset(id, 0, sizeof *id);
    std::memcpy(id, &++ids, sizeof ids);
    return 0;
}
const char* ncclGetErrorString(int code) {
    return code == 6 ? "remote process exited" : "unhandled cuda error";
}
const char* ncclGetLastError(Comm*) { return "the last words"; }
int ncclCommInitRankConfig(Comm** comm, int size, Id id, int rank, Config* config) {
    if (config->magic != 0xcafebeef || config->blocking || config->size < 40) return 4;
    if (const int code = entered("ncclCommInitRankConfig")) return code;
    const std::lock_guard<std::mutex> held(lock);
    auto& world = worlds[std::string(id.bytes, sizeof id.bytes)];
    if (!world) world = std::make_shared<World>();
    world->size = size;
    *comm = new Comm{world, rank, size};
    ++alive;
    return 7;
}
int ncclCommSplit(Comm* comm, int color, int key, Comm** made, Config*) {
    if (const int code = entered("ncclCommSplit")) return code;
    std::unique_lock<std::mutex> held(lock);
    auto& all = comm->world->splits[comm->split++];
    *made = new Comm{nullptr, -1, 0};
    ++alive;
    all[comm->rank] = {color, key, *made};
    changed.notify_all();
    until(held, [&] { return int(all.size()) == comm->size; });
    std::map<int, Comm*> mine;  // by key
    for (const auto& [rank, said] : all)
        if (std::get<0>(said) == color) mine[std::get<1>(said)] = std::get<2>(said);
    if (!(*made)->world) {
        const auto world = std::make_shared<World>();
        world->size = int(mine.size());
        int rank = 0;
        for (const auto& [its, member] : mine) {
            member->world = world;
            member->rank = rank++;
            member->size = world->size;
        }
    }
    return 0;
}
int ncclCommFinalize(Comm*) { return entered("ncclCommFinalize"); }
int ncclCommDestroy(Comm* comm) { return --alive, delete comm, 0; }
int ncclCommAbort(Comm* comm) { return --alive, delete comm, 0; }
int ncclCommGetAsyncError(Comm*, int* found) {
    if (const int code = entered("ncclCommGetAsyncError")) return code;
    *found = async_error;
    static thread_local int looks = 0;
    if (!async_error && slow && (slow < 0 || looks++ % (slow + 1) < slow)) *found = 7;
    return 0;
}
int ncclCommCount(Comm* comm, int* out) { return *out = comm->size, entered("ncclCommCount"); }
int ncclCommUserRank(Comm* comm, int* out) { return *out = comm->rank, 0; }
int ncclGroupStart() {
    if (const int code = entered("ncclGroupStart")) return code;
    return ++depth, 0;
}
int ncclGroupEnd() {
    --depth;
    std::vector<std::function<void()>> calls;
    calls.swap(group);
    if (const int code = entered("ncclGroupEnd")) return code;
    for (const auto& call : calls) call();
    return 7;
}
int ncclAllReduce(const void* from, void* to, std::size_t count, int type, int op, Comm* comm, void*) {
    return later("ncclAllReduce", [=] {
        meet(comm, from, count * bytes_of(type),
             [=](const std::vector<Sent>& calls) { reduced(to, calls, 0, count, type, op); });
    });
}
int ncclReduceScatter(const void* from, void* to, std::size_t count, int type, int op, Comm* comm, void*) {
    return later("ncclReduceScatter", [=] {
        meet(comm, from, count * bytes_of(type) * std::size_t(comm->size),
             [=](const std::vector<Sent>& calls) {
                 reduced(to, calls, count * std::size_t(comm->rank), count, type, op);
             });
    });
}
int ncclAllGather(const void* from, void* to, std::size_t count, int type, Comm* comm, void*) {
    return later("ncclAllGather", [=] {
        const std::size_t n = count * bytes_of(type);
        meet(comm, from, n, [=](const std::vector<Sent>& calls) {
            for (std::size_t i = 0; i < calls.size(); ++i)
                std::memcpy(static_cast<char*>(to) + i * n, calls[i].data(), n);
        });
    });
}
int ncclBroadcast(const void* from, void* to, std::size_t count, int type, int root, Comm* comm, void*) {
    return later("ncclBroadcast", [=] {
        const std::size_t n = count * bytes_of(type);
        meet(comm, from, comm->rank == root ? n : 0,
             [=](const std::vector<Sent>& calls) { std::memcpy(to, calls[std::size_t(root)].data(), n); });
    });
}
int ncclSend(const void* from, std::size_t count, int type, int peer, Comm* comm, void*) {
    return later("ncclSend", [=] {
        const std::lock_guard<std::mutex> held(lock);
        comm->world->mail[{comm->rank, peer}].emplace_back(static_cast<const char*>(from),
                                                           count * bytes_of(type));
        changed.notify_all();
    });
}
int ncclRecv(void* to, std::size_t count, int type, int peer, Comm* comm, void*) {
    return later("ncclRecv", [=] {
        std::unique_lock<std::mutex> held(lock);
        auto& box = comm->world->mail[{peer, comm->rank}];
        until(held, [&] { return !box.empty(); });
        std::memcpy(to, box.front().data(), std::min(box.front().size(), count * bytes_of(type)));
        box.pop_front();
    });
}
}
