// What lies in another process of this node, as a stream of bytes: mapped here, or read by the system.
#pragma once

#include "bindings/parts.h"
#include "bindings/reading.h"

namespace spmdx {

// Memory of a process that this one has mapped (bindings/arena.h): its address there, and here.
struct Window {
    uint64_t begin = 0, bytes = 0;
    char* here = nullptr;

    char* find(const Stretch& each) const {
        const uint64_t offset = each.begin - begin;
        return each.begin >= begin && offset <= bytes && each.bytes <= bytes - offset ? here + offset
                                                                                      : nullptr;
    }
};

// A list of stretches from byte `from` on, each byte passed once.
class Reach {
 public:
    Reach(const Stretch* at, const Stretch* end, uint64_t from, const Window& window, int64_t process)
        : at_(at), end_(end), done_(from), window_(window), process_(process) {
        while (at_ != end_ && done_ >= at_->bytes) done_ -= at_->bytes, ++at_;
    }

    // How many bytes come that lie together here.
    int64_t together() const { return at_ != end_ && window_.find(*at_) ? int64_t(at_->bytes - done_) : 0; }
    // The next bytes where they lie here, if they lie together; else null, and nothing is passed.
    char* lying(int64_t bytes) {
        if (at_ == end_ || at_->bytes - done_ < uint64_t(bytes)) return nullptr;
        char* const place = window_.find(*at_);
        return place ? pass(uint64_t(bytes)), place + done_before_ : nullptr;
    }

    void read(char* to, int64_t bytes, bool past_caches) {
        for (uint64_t left = uint64_t(bytes); left > 0 && at_ != end_;) {
            const uint64_t n = std::min(left, at_->bytes - done_);
            if (const char* const place = window_.find(*at_)) {
                copy(to, place + done_, int64_t(n), past_caches);
                to += n, left -= n;
                pass(n);
                continue;
            }
            std::array<Stretch, 64> wanted;  // those of a kind together: every call of the system counts
            int64_t count = 0;
            uint64_t all = 0;
            while (count < int64_t(wanted.size()) && all < left && at_ != end_ && !window_.find(*at_)) {
                const uint64_t some = std::min(left - all, at_->bytes - done_);
                wanted[size_t(count++)] = {at_->begin + done_, some};
                all += some;
                pass(some);
            }
            must_read(process_, wanted.data(), count, to);
            to += all, left -= all;
        }
    }

    void skip(int64_t bytes) {
        for (uint64_t left = uint64_t(bytes); left > 0 && at_ != end_;) {
            const uint64_t n = std::min(left, at_->bytes - done_);
            pass(n);
            left -= n;
        }
    }

    // All of it is mapped here.
    void write(const char* from, int64_t bytes, bool past_caches) {
        for (uint64_t left = uint64_t(bytes); left > 0 && at_ != end_;) {
            const uint64_t n = std::min(left, at_->bytes - done_);
            copy(window_.find(*at_) + done_, from, int64_t(n), past_caches);
            from += n, left -= n;
            pass(n);
        }
    }

 private:
    static void copy(char* to, const char* from, int64_t bytes, bool past_caches) {
        past_caches ? copy_long<true>(to, from, bytes) : copy_long<false>(to, from, bytes);
    }
    void pass(uint64_t bytes) {
        done_before_ = done_;
        done_ += bytes;
        while (at_ != end_ && done_ >= at_->bytes) done_ -= at_->bytes, ++at_;
    }

    const Stretch *at_, *end_;
    uint64_t done_, done_before_ = 0;  // bytes of the stretch that comes
    Window window_;
    int64_t process_;
};

}  // namespace spmdx
