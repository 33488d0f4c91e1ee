// Python's own objects in large pages. Python takes memory for them from the system in pieces of 1 MiB,
// wherever there is room; a step of a program touches thousands of small pages there, and after each long
// product of matrices the processor has forgotten where most of them are. Here two pieces share a large page.
#pragma once

#include <mutex>
#include <new>
#include <set>

#include "bindings/arena.h"

namespace spmdx {

class ObjectPages {
 public:
    static constexpr size_t kept = 4;  // pages in which nothing lies: Python may want them in its next step
    static constexpr size_t piece = 1 << 20, pieces = large_page / piece;

    // One of the pieces of a large page; null where there is none, and for what Python keeps otherwise: the
    // frames of its calls, which come and go in pieces of 16 KiB.
    char* take(size_t bytes) noexcept {
        if (bytes != piece) return nullptr;
        const std::lock_guard<std::mutex> guard(mutex_);
        try {
            if (free_.empty()) add_page();
        } catch (const std::exception&) {
            return nullptr;
        }
        char* const first = *free_.begin();  // the others empty sooner so
        free_.erase(free_.begin());
        return first;
    }

    // False for what did not come from here.
    bool give_back(char* given) noexcept {
        const std::lock_guard<std::mutex> guard(mutex_);
        char* const page = given - reinterpret_cast<uintptr_t>(given) % large_page;
        if (!pages_.count(page)) return false;
        try {
            free_.insert(given);
        } catch (const std::bad_alloc&) {  // then it is never used again
        }
        if (free_.size() > kept * pieces) drop_page(page);
        return true;
    }

 private:
    void add_page() {
        char* const page = map_pages(-1, large_page);
#if defined(__linux__)
        madvise(page, large_page, MADV_DODUMP);  // whoever looks into a core file looks for objects
#endif
        pages_.insert(page);
        for (size_t i = 0; i < pieces; ++i) free_.insert(page + i * piece);
    }

    // If nothing lies there.
    void drop_page(char* page) {
        const auto first = free_.lower_bound(page), end = free_.lower_bound(page + large_page);
        if (size_t(std::distance(first, end)) != pieces) return;
        free_.erase(first, end);
        pages_.erase(page);
#if defined(__linux__)
        munmap(page, large_page);
#endif
    }

    std::mutex mutex_;  // interpreters of one process may have locks of their own
    std::set<char*> pages_, free_;
};

}  // namespace spmdx
