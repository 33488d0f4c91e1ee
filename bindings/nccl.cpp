// spmdx._nccl: communicators of NCCL, whose arrays are given by their addresses on the device.
//
// Communicators do not block: a call that is still going on is looked at until it is done, has failed or has
// taken too long, and what has gone wrong is raised with NCCL's own words. The interpreter is free meanwhile.
#include "bindings/nccl.h"

#include <dlfcn.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace spmdx::nccl {

Library::Library(const std::string& path) {
    void* const opened = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!opened) throw Error(-1, dlerror());
    const auto find = [&](auto& function, const char* name) {
        void* const found = dlsym(opened, name);
        if (!found) throw Error(-1, path + " has no " + name + ": it is no NCCL, or older than 2.18");
        std::memcpy(&function, &found, sizeof found);
    };
#define SPMDX_FIND(name) find(name, #name)
    SPMDX_FIND(ncclGetVersion);
    SPMDX_FIND(ncclGetUniqueId);
    SPMDX_FIND(ncclGetErrorString);
    SPMDX_FIND(ncclGetLastError);
    SPMDX_FIND(ncclCommInitRankConfig);
    SPMDX_FIND(ncclCommSplit);
    SPMDX_FIND(ncclCommFinalize);
    SPMDX_FIND(ncclCommDestroy);
    SPMDX_FIND(ncclCommAbort);
    SPMDX_FIND(ncclCommGetAsyncError);
    SPMDX_FIND(ncclCommCount);
    SPMDX_FIND(ncclCommUserRank);
    SPMDX_FIND(ncclAllReduce);
    SPMDX_FIND(ncclAllGather);
    SPMDX_FIND(ncclReduceScatter);
    SPMDX_FIND(ncclBroadcast);
    SPMDX_FIND(ncclSend);
    SPMDX_FIND(ncclRecv);
    SPMDX_FIND(ncclGroupStart);
    SPMDX_FIND(ncclGroupEnd);
#undef SPMDX_FIND
    if (version() < oldest)
        throw Error(
            -1, path + " is NCCL " + std::to_string(version()) + ", and 21800 is the oldest that will do");
}

int Library::version() const {
    int out = 0;
    ncclGetVersion(&out);
    return out;
}

namespace {

using Address = std::uintptr_t;
using Clock = std::chrono::steady_clock;

const void* at(Address address) { return reinterpret_cast<const void*>(address); }
void* into(Address address) { return reinterpret_cast<void*>(address); }

// A range of an array: its address, and how many elements.
using Range = std::pair<Address, std::size_t>;

class Communicator {
 public:
    Communicator(std::shared_ptr<Library> library, int size, const std::string& id, int rank, double limit)
        : nccl_(std::move(library)), limit_(limit) {
        Id own{};
        if (id.size() != sizeof own.bytes)
            throw Error(-1, "a unique id has 128 bytes, not " + std::to_string(id.size()));
        if (size < 1 || rank < 0 || rank >= size)
            throw Error(-1, "rank " + std::to_string(rank) + " of " + std::to_string(size) + " ranks");
        std::memcpy(own.bytes, id.data(), sizeof own.bytes);
        const py::gil_scoped_release free;
        Config config;
        begun("ncclCommInitRankConfig", nccl_->ncclCommInitRankConfig(&comm_, size, own, rank, &config));
    }
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;
    ~Communicator() { abort(); }  // what is destroyed in order has been closed before

    // The ranks of one colour, in the order of their keys: all ranks call it.
    std::unique_ptr<Communicator> split(int color, int key) {
        std::unique_ptr<Communicator> made(new Communicator(nccl_, limit_));
        const py::gil_scoped_release free;
        Config config;
        const int said = nccl_->ncclCommSplit(open(), color, key, &made->comm_, &config);
        finish("ncclCommSplit", said);
        made->begun("ncclCommSplit", success);
        return made;
    }

    int size() const { return number(nccl_->ncclCommCount, "ncclCommCount"); }
    int rank() const { return number(nccl_->ncclCommUserRank, "ncclCommUserRank"); }

    // Every array is reduced over the ranks, all in one group: (from, to, elements).
    void all_reduce(const std::vector<std::tuple<Address, Address, std::size_t>>& arrays, int type, int op,
                    Address stream) {
        group("ncclAllReduce", [&](Comm comm) {
            for (const auto& [from, to, count] : arrays)
                said(nccl_->ncclAllReduce(at(from), into(to), count, type, op, comm, into(stream)));
        });
    }
    // `count` elements of every rank, in their order.
    void all_gather(Address from, Address to, std::size_t count, int type, Address stream) {
        group("ncclAllGather", [&](Comm comm) {
            said(nccl_->ncclAllGather(at(from), into(to), count, type, comm, into(stream)));
        });
    }
    // `count` elements for every rank.
    void reduce_scatter(Address from, Address to, std::size_t count, int type, int op, Address stream) {
        group("ncclReduceScatter", [&](Comm comm) {
            said(nccl_->ncclReduceScatter(at(from), into(to), count, type, op, comm, into(stream)));
        });
    }
    // Range number i is given to all by rank i, who has it at `from`; empty ones are left out.
    void gather_ranges(Address from, const std::vector<Range>& ranges, int type, Address stream) {
        group("ncclBroadcast", [&](Comm comm) {
            for (std::size_t i = 0; i < ranges.size(); ++i)
                if (ranges[i].second)
                    said(nccl_->ncclBroadcast(at(from), into(ranges[i].first), ranges[i].second, type, int(i),
                                              comm, into(stream)));
        });
    }
    // In place: what rank `root` has.
    void broadcast(Address array, std::size_t count, int type, int root, Address stream) {
        group("ncclBroadcast", [&](Comm comm) {
            said(nccl_->ncclBroadcast(at(array), into(array), count, type, root, comm, into(stream)));
        });
    }
    // Range number i goes to rank i, or comes from it; empty ones are left out on both sides.
    void exchange(const std::vector<Range>& sends, const std::vector<Range>& receives, int type,
                  Address stream) {
        group("ncclSend and ncclRecv", [&](Comm comm) {
            for (std::size_t i = 0; i < sends.size(); ++i)
                if (sends[i].second)
                    said(nccl_->ncclSend(at(sends[i].first), sends[i].second, type, int(i), comm,
                                         into(stream)));
            for (std::size_t i = 0; i < receives.size(); ++i)
                if (receives[i].second)
                    said(nccl_->ncclRecv(into(receives[i].first), receives[i].second, type, int(i), comm,
                                         into(stream)));
        });
    }

    // What has gone wrong since, in what was begun before.
    void check() {
        const py::gil_scoped_release free;
        finish("the communicator", success);
    }
    // Ends what is going on, on this rank, whatever state it is in.
    void abort() noexcept {
        if (comm_) nccl_->ncclCommAbort(comm_);
        comm_ = nullptr;
    }
    // Waits until all is done, and gives everything back: all ranks call it.
    void close() {
        if (!comm_) return;
        const py::gil_scoped_release free;
        finish("ncclCommFinalize", nccl_->ncclCommFinalize(comm_));
        nccl_->ncclCommDestroy(std::exchange(comm_, nullptr));
    }

 private:
    Communicator(std::shared_ptr<Library> library, double limit) : nccl_(std::move(library)), limit_(limit) {}

    Comm open() const {
        if (!comm_) throw Error(-1, "the communicator is closed, or was aborted");
        return comm_;
    }
    int number(int (*ask)(Comm, int*), const char* what) const {
        int out = -1;
        if (const int found = ask(open(), &out)) fail(what, found);
        return out;
    }
    [[noreturn]] void fail(const char* what, int code) const {
        const char* const more = nccl_->ncclGetLastError(comm_);
        std::string text = std::string(what) + ": " + nccl_->ncclGetErrorString(code);
        if (more && *more) text += std::string(" (") + more + ")";
        throw Error(code, text);
    }
    // The first result in a group that is neither good nor pending.
    void said(int result) {
        if (first_ == success && result != success && result != in_progress) first_ = result;
    }
    void group(const char* what, const std::function<void(Comm)>& calls) {
        Comm comm = open();
        const py::gil_scoped_release free;
        first_ = success;
        if (const int found = nccl_->ncclGroupStart()) fail(what, found);
        calls(comm);
        const int found = nccl_->ncclGroupEnd();  // closes the group also where a call in it was refused
        finish(what, first_ != success ? first_ : found);
    }
    // A communicator that came to be: on a failure it is given up, for nobody can use it.
    void begun(const char* what, int result) {
        try {
            finish(what, result);
        } catch (...) {
            abort();
            throw;
        }
    }
    // Look until the communicator has done what it is doing.
    void finish(const char* what, int result) const {
        const auto start = Clock::now();
        auto pause = std::chrono::microseconds(1);
        for (;;) {
            if (result != success && result != in_progress) fail(what, result);
            if (const int found = nccl_->ncclCommGetAsyncError(open(), &result)) fail(what, found);
            if (result == success) return;
            if (std::chrono::duration<double>(Clock::now() - start).count() > limit_)
                throw Error(0,
                            std::string(what) + " is not done after " + std::to_string(limit_) + " seconds");
            std::this_thread::sleep_for(pause);
            if (pause < std::chrono::milliseconds(1)) pause *= 2;
        }
    }

    std::shared_ptr<Library> nccl_;
    double limit_;  // seconds
    Comm comm_ = nullptr;
    int first_ = success;
};

}  // namespace
}  // namespace spmdx::nccl

PYBIND11_MODULE(_nccl, m) {
    using namespace spmdx::nccl;
    m.doc() = "NCCL, opened when the program runs. Arrays are addresses on the device; streams too.";
    static py::exception<Error> raised(m, "Error", PyExc_RuntimeError);
    py::register_exception_translator([](std::exception_ptr thrown) {
        try {
            if (thrown) std::rethrow_exception(thrown);
        } catch (const Error& error) {
            py::object made = py::reinterpret_borrow<py::object>(raised)(error.what());
            made.attr("code") = error.code;
            PyErr_SetObject(raised.ptr(), made.ptr());
        }
    });
    py::class_<Library, std::shared_ptr<Library>>(m, "Library")
        .def(py::init<const std::string&>(), py::arg("path"))
        .def_property_readonly("version", &Library::version)
        .def("unique_id", [](const Library& library) {
            Id id{};
            if (const int found = library.ncclGetUniqueId(&id))
                throw Error(found, std::string("ncclGetUniqueId: ") + library.ncclGetErrorString(found));
            return py::bytes(id.bytes, sizeof id.bytes);
        });
    py::class_<Communicator>(m, "Communicator")
        .def(py::init<std::shared_ptr<Library>, int, const std::string&, int, double>(), py::arg("library"),
             py::arg("size"), py::arg("id"), py::arg("rank"), py::arg("limit"))
        .def("split", &Communicator::split, py::arg("color"), py::arg("key"))
        .def_property_readonly("size", &Communicator::size)
        .def_property_readonly("rank", &Communicator::rank)
        .def("all_reduce", &Communicator::all_reduce)
        .def("all_gather", &Communicator::all_gather)
        .def("reduce_scatter", &Communicator::reduce_scatter)
        .def("gather_ranges", &Communicator::gather_ranges)
        .def("broadcast", &Communicator::broadcast)
        .def("exchange", &Communicator::exchange)
        .def("check", &Communicator::check)
        .def("abort", &Communicator::abort)
        .def("close", &Communicator::close);
}
