// Collectives between ranks of one node, through memory that they share. Messages go in pieces that stay in a
// cache: while one half of the staging memory is read, the other is written, so one barrier a piece is
// enough. The first piece travels with a header, from which all learn what every member brings. Long messages
// that lie in stretches are read from where they lie, if that is mapped here or the system lets processes
// read each other.
#pragma once

#include <chrono>
#include <string>

#include "bindings/barrier.h"
#include "bindings/dispatch.h"
#include "bindings/parts.h"
#include "bindings/reach.h"

namespace spmdx {

enum class Verb { all_to_all, all_gather, reduce_scatter, all_reduce };

// What one rank sends and gets in a collective: made once, used for every message of the kind.
struct Parcel {
    Verb verb;
    int64_t signature;          // the same on all ranks that mean the same collective
    std::vector<Part> send;     // for every member; one for all of them in all_gather and all_reduce
    std::vector<Part> receive;  // from every member; one in reductions
    std::vector<int64_t> sources, targets;  // bytes of the blocks that go in and come out
    Op op{};
    Number number{};
    int64_t item = 1;

    int64_t sent() const {
        int64_t all = 0;
        for (const Part& each : send) all += each.bytes;
        return all;
    }
};

class Channel {
 public:
    // Bytes: where things lie in every member's memory. `control` is the members' slots, in the first one's,
    // and then two headers, in each. `row` is the numbers in a header, `stages` two areas of size + 1 pieces.
    struct Layout {
        int64_t control, row, piece;
        std::array<int64_t, 2> stages;
    };
    // What carry returns where it cannot.
    static constexpr int64_t disagree = -1;  // and -2 - i: member i sends something else than is expected
    static constexpr int64_t ended = -(int64_t{1} << 32);  // less i: member i has come to its program's end
    static constexpr int64_t tile = 1 << 14;               // stays in the first-level cache
    static constexpr int64_t once = 1 << 17;  // bytes of all members that every one reads in an all_reduce
    // Bytes of a row that is a stretch of its own, and of one that is combined where it lies.
    static constexpr int64_t long_row = 1 << 8, row_to_reduce = 1 << 11;
    // Bytes for one member from which on it reads them itself: to move, and to combine.
    static constexpr int64_t long_to_move = 1 << 15, long_to_reduce = 1 << 17;

    // Numbers in a header.
    static int64_t row(int64_t size) { return 2 * size + 5; }

    // `processes`: the numbers of the members' processes if they may read each other, and else none.
    // `windows`: their arenas, if all members have mapped them all, and else none.
    Channel(std::vector<char*> heaps, std::vector<int64_t> processes, std::vector<Window> windows, int rank,
            Layout layout, int spins)
        : heaps_(std::move(heaps)),
          processes_(std::move(processes)),
          windows_(std::move(windows)),
          layout_(layout),
          slots_{heaps_[0] + layout.control, rank, int(heaps_.size())},
          rank_(rank),
          size_(int(heaps_.size())),
          spins_(spins) {
        own_slots.add(slots_.of(rank));
    }

    // Whether members may have the system read each other's memory.
    bool reads() const { return !processes_.empty(); }

    void barrier() {
        arrive();
        wait();
    }

    // Bytes that one member said it sends another, in the last collective.
    int64_t said(int from, int to) const {
        const int64_t* const row = header(from);
        return row[3 + to] - (to > 0 ? row[2 + to] : 0);
    }

    // Returns 0 when done, and otherwise the bytes of the longest message if there are more than `limit`:
    // then nothing has been done, on any rank. Negative: see above.
    int64_t carry(const Parcel& parcel, char* const* sources, char* const* targets, int64_t limit,
                  int64_t past_caches) {
        parcel_ = &parcel, sources_ = sources, targets_ = targets;
        const Trial trial(*this, habits_[size_t(bit_length(parcel.sent()))]);
        int64_t out = 0;
        for (const int64_t bytes : parcel.targets) out += bytes;
        past_caches_ = out >= past_caches;
        const bool pieces = parcel.verb == Verb::all_reduce && size_ * parcel.sent() > once;
        wide_ = parcel.verb == Verb::all_gather || (parcel.verb == Verb::all_reduce && !pieces);
        width_ = wide_ ? layout_.piece * size_ : layout_.piece;
        const auto begin = [&] { pieces ? stage_chunk(0, next()) : stage(0); };
        const auto meet = [&] {
            arrive();
            if (!pieces) own(0);
            wait();
        };
        const bool ready = write_header();
        if (ready && is_long(header(rank_)[2])) {  // it will most likely be read
            arrive();
            wait();
        } else {
            begin();
            meet();
        }
        int64_t longest = 0, part = 0;
        bool all_ready = true, waiting = false;  // for others to read it
        for (int i = 0; i < size_; ++i) {
            const int64_t* const row = header(i);
            if (row[0] != parcel.signature) return disagree;
            longest = std::max(longest, row[1]);
            part = std::max(part, row[2]);
            all_ready = all_ready && row[3 + size_];
            waiting = waiting || (row[3 + size_] && is_long(row[2]));
        }
        if (parcel.verb == Verb::all_to_all)
            for (int i = 0; i < size_; ++i)
                if (said(i, rank_) != parcel.receive[size_t(i)].bytes) return -2 - i;
        if (longest > limit) return longest;
        if (waiting && all_ready) {
            read();
            barrier();
            trial.done();
            return 0;
        }
        if (waiting) {
            begin();
            meet();
        }
        if (pieces) {
            all_reduce(longest);
        } else {
            const int64_t most = wide_ ? longest : part;
            collect(0);
            for (int64_t at = width_; at < most; at += width_) {
                stage(at);
                arrive();
                own(at);
                wait();
                collect(at);
            }
        }
        if (past_caches_) finish_copies();
        trial.done();
        return 0;
    }

 private:
    int half() const { return int(epoch_ & 1); }
    int next() const { return int((epoch_ + 1) & 1); }
    char* staged(int member, int half, int slot) const {
        return heaps_[size_t(member)] + layout_.stages[size_t(half)] + slot * layout_.piece;
    }
    int64_t left(const Part& stream, int64_t at) const {
        return std::clamp<int64_t>(stream.bytes - at, 0, width_);
    }
    void arrive() {
        finish_copies();
        slots_.arrive(++epoch_);
    }
    void wait() {
        const double start = measures_ ? seconds() : 0;
        slots_.wait(epoch_, spins_);
        if (measures_) waited_ += seconds() - start;
    }

    // One member's last header: signature, bytes, those of the longest part, and where each part ends.
    int64_t* header(int member) const {
        char* const headers = heaps_[size_t(member)] + layout_.control + 64 * size_;
        return reinterpret_cast<int64_t*>(headers) + header_half_ * layout_.row;
    }
    bool is_long(int64_t part) const {
        if (parcel_->verb == Verb::all_reduce) return part / size_ >= long_to_reduce;
        return part >= (parcel_->verb == Verb::reduce_scatter ? long_to_reduce : long_to_move);
    }

    // Then: whether others may read the parts, and where in the list of stretches those of each begin; after
    // the last one come those of the result, which all_reduce reads.
    bool write_header() {
        header_half_ = next();
        int64_t* const row = header(rank_);
        row[0] = parcel_->signature;
        row[1] = row[2] = 0;
        for (size_t i = 0; i < size_t(size_); ++i) {
            const int64_t part = i < parcel_->send.size() ? parcel_->send[i].bytes : 0;
            row[2] = std::max(row[2], part);
            row[3 + i] = row[1] += part;
        }
        const bool ready = list_stretches(row + 4 + size_, row[2]);
        row[3 + size_] = ready;
        return ready;
    }
    Stretch* stretches(int member) const {
        return reinterpret_cast<Stretch*>(staged(member, header_half_, size_));
    }
    const int64_t* begins(int member) const { return header(member) + 4 + size_; }
    Window window(int member) const { return windows_.empty() ? Window{} : windows_[size_t(member)]; }

    // False where others cannot read all of it.
    bool list_stretches(int64_t* begins, int64_t largest) const {
        if (!reads() && windows_.empty()) return false;
        Stretch* const list = stretches(rank_);
        const int64_t room = layout_.piece / int64_t(sizeof(Stretch));
        int64_t n = 0;
        const auto add = [&](const Part& part, char* const* bases) {
            *begins++ = n;
            return std::all_of(part.boxes.begin(), part.boxes.end(), [&](const Box& each) {
                const Stretch run{reinterpret_cast<uintptr_t>(bases[each.array] + each.row(0)),
                                  uint64_t(each.run)};
                const int64_t rows = each.bytes / each.run;
                if (n + rows > room || (rows > 1 && (each.run < long_row || !window(rank_).find(run))))
                    return false;
                for (int64_t i = 0; i < rows; ++i)
                    list[n++] = {reinterpret_cast<uintptr_t>(bases[each.array] + each.row(i)), run.bytes};
                return true;
            });
        };
        for (const Part& each : parcel_->send)
            if (!add(each, sources_)) return false;
        if (parcel_->verb == Verb::all_reduce && !add(parcel_->receive[0], targets_)) return false;
        *begins = n;
        return readable(list, n, reads() && is_long(largest));
    }
    // Whether what is listed is mapped by the others, or else the system reads it: memory of devices it does
    // not, and then a member alone would fail. The system is asked only where that costs little beside the
    // message: what is short and not mapped is staged, also where others bring long parts.
    bool readable(const Stretch* list, int64_t count, bool asks) const {
        std::array<Stretch, 64> firsts;
        std::array<char, firsts.size()> bytes;
        int64_t n = 0;
        const auto look = [&] {
            return n == 0 ||
                   (asks && read_process(processes_[size_t(rank_)], firsts.data(), n, bytes.data()));
        };
        for (int64_t i = 0; i < count; ++i) {
            if (window(rank_).find(list[i])) continue;
            firsts[size_t(n++)] = {list[i].begin, std::min<uint64_t>(1, list[i].bytes)};
            if (n < int64_t(firsts.size())) continue;
            if (!look()) return false;
            n = 0;
        }
        return look();
    }
    // How messages of one size class are best handed out. Lines that another core has read are slow to get
    // back: on most machines it is faster to write by the caches, but not where the cores share theirs, and a
    // virtual machine's cores move. So now and then all ranks try both ways for some messages, and then keep
    // to the faster.
    struct Habit {
        unsigned turn = 0;
        std::array<double, 2> cost{};
        bool past_caches = true;
    };
    class Trial {
     public:
        static constexpr unsigned tries = 4, period = 256;

        Trial(Channel& channel, Habit& habit)
            : channel_(channel),
              habit_(habit),
              turn_(habit.turn++ % period),
              measures_(turn_ % tries > 0 && turn_ < 2 * tries) {
            channel.hand_out_past_caches_ = turn_ < 2 * tries ? turn_ < tries : habit.past_caches;
            channel.waited_ = 0;
            channel.measures_ = measures_;
            if (measures_) start_ = seconds();
        }
        void done() const {
            if (!measures_) return;
            const double cost = seconds() - start_ - channel_.waited_;
            double& least = habit_.cost[channel_.hand_out_past_caches_];
            least = turn_ % tries == 1 ? cost : std::min(least, cost);
            if (turn_ + 1 == 2 * tries) habit_.past_caches = habit_.cost[1] <= 1.1 * habit_.cost[0];
        }

     private:
        Channel& channel_;
        Habit& habit_;
        unsigned turn_;
        bool measures_;
        double start_ = 0;
    };
    static double seconds() {
        return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    }
    static int bit_length(int64_t n) {
        int bits = 0;
        for (; n > 0; n >>= 1) ++bits;
        return bits;
    }

    // Write what others will read.
    void put(const Part& stream, int64_t at, int64_t bytes, char* to) const {
        if (const char* const flat = stream.stretch(sources_)) return hand_out(to, flat + at, bytes);
        alignas(64) std::array<char, tile> some;
        for (int64_t done = 0; done < bytes; done += tile) {
            const int64_t n = std::min<int64_t>(tile, bytes - done);
            stream.pack(sources_, at + done, n, some.data());
            hand_out(to + done, some.data(), n);
        }
    }
    void hand_out(char* to, const char* from, int64_t bytes) const {
        if (bytes < 512)
            std::memcpy(to, from, size_t(bytes));
        else if (hand_out_past_caches_)
            copy_long<true>(to, from, bytes);
        else
            copy_long<false>(to, from, bytes);
    }

    // Put into the half that is read after the next barrier what the others need of me.
    void stage(int64_t at) const {
        if (wide_) {
            const Part& all = parcel_->send[0];
            return put(all, at, left(all, at), staged(rank_, next(), 0));
        }
        for (int i = 0; i < size_; ++i) {
            const Part& part = parcel_->send[size_t(i)];
            if (i != rank_) put(part, at, left(part, at), staged(rank_, next(), i));
        }
    }

    // What I need of myself. The barrier has been announced: others may be waited for meanwhile.
    void own(int64_t at) const {
        if (parcel_->verb == Verb::all_reduce) return;  // lies in the stage already
        const Part& part = parcel_->send[parcel_->verb == Verb::all_gather ? 0 : size_t(rank_)];
        if (parcel_->verb != Verb::reduce_scatter)
            return move_between(part, sources_, parcel_->receive[size_t(rank_)], targets_, at, left(part, at),
                                past_caches_);
        if (!part.stretch(sources_)) part.pack(sources_, at, left(part, at), staged(rank_, half(), rank_));
    }

    // What I need of the others.
    void collect(int64_t at) {
        if (parcel_->verb == Verb::all_to_all || parcel_->verb == Verb::all_gather) {
            for (int k = 1; k < size_; ++k) {
                const int i = (rank_ + k) % size_;  // each begins with another
                const Part& part = parcel_->receive[size_t(i)];
                part.unpack(targets_, at, left(part, at), staged(i, half(), wide_ ? 0 : rank_), past_caches_);
            }
            return;
        }
        for (int i = 0; i < size_; ++i) inputs_[size_t(i)] = staged(i, half(), wide_ ? 0 : rank_);
        if (!wide_)
            if (const char* const mine = parcel_->send[size_t(rank_)].stretch(sources_))
                inputs_[size_t(rank_)] = mine + at;
        reduce(at, left(parcel_->receive[0], at), nullptr);
    }

    // The inputs combined, in the order of the members, into bytes of the result, and into `shared` for
    // others.
    void reduce(int64_t at, int64_t bytes, char* shared) {
        const Part& result = parcel_->receive[0];
        char* const flat = result.stretch(targets_);
        if (flat && !shared && !past_caches_) return reduce_to(flat + at, bytes);
        alignas(64) std::array<char, tile> some;
        for (int64_t done = 0; done < bytes; done += tile) {
            const int64_t n = std::min<int64_t>(tile, bytes - done);
            reduce_to(some.data(), n);
            if (shared) hand_out(shared + done, some.data(), n);
            result.unpack(targets_, at + done, n, some.data(), past_caches_);
            for (const void*& input : inputs_) input = static_cast<const char*>(input) + n;
        }
    }
    void reduce_to(char* out, int64_t bytes) const {
        build().load()->reduce(parcel_->op, parcel_->number, out, inputs_.data(), size_, 0,
                               uint64_t(bytes / parcel_->item));
    }

    // What a member has listed for one place, from byte `at` on.
    Reach reach(int member, int place, int64_t at) const {
        const Stretch* const list = stretches(member);
        const int64_t* const begin = begins(member) + place;
        return {list + begin[0], list + begin[1], uint64_t(at), window(member),
                reads() ? processes_[size_t(member)] : 0};
    }
    // Memory of my own, which nobody reads now.
    char* between(int slot) const { return staged(rank_, 1 - header_half_, slot); }
    const char* next_piece(Reach& there, int64_t bytes, int slot) const {
        if (const char* const lies = there.lying(bytes)) return lies;
        there.read(between(slot), bytes, false);
        return between(slot);
    }
    // Bytes from `at` on of what a member has listed for a place, into part of a result, from its byte `to`
    // on.
    void take(int member, int place, int64_t at, int64_t bytes, const Part& part, int64_t to) {
        Reach there = reach(member, place, at);
        if (char* const flat = part.stretch(targets_)) return there.read(flat + to, bytes, past_caches_);
        for (int64_t done = 0; done < bytes; done += layout_.piece) {
            const int64_t n = std::min(layout_.piece, bytes - done);
            part.unpack(targets_, to + done, n, next_piece(there, n, 0), past_caches_);
        }
    }
    // All that is meant for me, from where it lies. Nobody may go on before all have read.
    void read() {
        const Part& result = parcel_->receive[0];
        const auto others = [&](const auto& f) {
            for (int k = 1; k < size_; ++k) f((rank_ + k) % size_);  // each begins with another
        };
        if (parcel_->verb == Verb::reduce_scatter) return read_reduced(rank_, 0, result.bytes, 0);
        if (parcel_->verb == Verb::all_reduce) {
            const int64_t each = ((result.bytes + size_ - 1) / size_ + 63) / 64 * 64;
            const auto low = [&](int member) { return std::min(result.bytes, member * each); };
            if (results_are_mapped()) return reduce_for_all(low(rank_), low(rank_ + 1));
            read_reduced(0, low(rank_), low(rank_ + 1), low(rank_));
            barrier();
            return others([&](int i) { take(i, 1, low(i), low(i + 1) - low(i), result, low(i)); });
        }
        const int place = parcel_->verb == Verb::all_gather ? 0 : rank_;
        const Part& mine = parcel_->send[size_t(place)];
        move_between(mine, sources_, parcel_->receive[size_t(rank_)], targets_, 0, mine.bytes, past_caches_);
        others([&](int i) {
            const Part& part = parcel_->receive[size_t(i)];
            take(i, place, 0, part.bytes, part, 0);
        });
    }
    // The members' bytes from `begin` to `end` of a part of each, a piece at a time: `use` finds them in
    // inputs_.
    template <class Use>
    void read_inputs(int place, int64_t begin, int64_t end, const Use& use) {
        const Part& mine = parcel_->send[size_t(place)];
        const char* const flat = mine.stretch(sources_);
        std::vector<Reach> all;
        for (int i = 0; i < size_; ++i) all.push_back(reach(i, place, begin));
        for (int64_t at = begin, n; at < end; at += n) {
            n = std::min(layout_.piece, end - at);
            for (const Reach& each : all)
                if (const int64_t row = each.together()) n = std::min(n, row < row_to_reduce ? tile : row);
            for (int i = 0; i < size_; ++i) {
                Reach& there = all[size_t(i)];
                const void*& input = inputs_[size_t(i)];
                if (i == rank_ && flat)
                    input = flat + at;
                else if (i != rank_)
                    input = next_piece(there, n, i);
                else if (input = there.lying(n); !input)
                    mine.pack(sources_, at, n, between(i)), there.skip(n), input = between(i);
            }
            use(at, n);
        }
    }
    // They are combined into the result from `to` on.
    void read_reduced(int place, int64_t begin, int64_t end, int64_t to) {
        read_inputs(place, begin, end, [&](int64_t at, int64_t n) { reduce(to + at - begin, n, nullptr); });
    }
    // In all_reduce: whether every member can write to all results. Every member finds the same.
    bool results_are_mapped() const {
        for (int i = 0; i < size_; ++i)
            for (int64_t j = begins(i)[1]; j < begins(i)[2]; ++j)
                if (!window(i).find(stretches(i)[j])) return false;
        return true;
    }
    // One member's share of an all_reduce, written to where all members want it.
    void reduce_for_all(int64_t begin, int64_t end) {
        std::vector<Reach> results;
        for (int k = 0; k < size_; ++k) results.push_back(reach((rank_ + k) % size_, 1, begin));
        alignas(64) std::array<char, tile> some;
        read_inputs(0, begin, end, [&](int64_t, int64_t bytes) {
            for (int64_t done = 0; done < bytes; done += tile) {
                const int64_t n = std::min<int64_t>(tile, bytes - done);
                reduce_to(some.data(), n);
                for (Reach& each : results) each.write(some.data(), n, past_caches_ || hand_out_past_caches_);
                for (const void*& input : inputs_) input = static_cast<const char*>(input) + n;
            }
        });
    }

    // A large all_reduce, in chunks of a piece for every member: each reduces its piece and hands out the
    // result.
    struct Span {
        int64_t low, bytes;
    };
    Span span(int64_t chunk, int member, int64_t total) const {
        const int64_t most = layout_.piece * size_, low = chunk * most, high = std::min(total, low + most);
        const int64_t each = ((high - low + size_ - 1) / size_ + 63) / 64 * 64;
        const int64_t from = std::min(high, low + member * each);
        return {from, std::min(high, from + each) - from};
    }
    void stage_chunk(int64_t chunk, int half) const {
        const Part& all = parcel_->send[0];
        const bool lies = all.stretch(sources_);
        for (int i = 0; i < size_; ++i) {
            const Span part = span(chunk, i, all.bytes);
            char* const to = staged(rank_, half, i);
            if (i != rank_)
                put(all, part.low, part.bytes, to);
            else if (!lies)
                all.pack(sources_, part.low, part.bytes, to);
        }
    }
    // Between two barriers: reduce a piece of one chunk, stage the next, copy the results of the one before.
    void all_reduce(int64_t total) {
        const Part &all = parcel_->send[0], &out = parcel_->receive[0];
        const char* const lies = all.stretch(sources_);
        const int64_t chunks = (total + layout_.piece * size_ - 1) / (layout_.piece * size_);
        const auto results = [&](int64_t chunk, int half) {
            for (int k = 1; k < size_; ++k) {
                const int i = (rank_ + k) % size_;
                const Span part = span(chunk, i, total);
                out.unpack(targets_, part.low, part.bytes, staged(i, half, size_), past_caches_);
            }
        };
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
            const Span mine = span(chunk, rank_, total);
            for (int i = 0; i < size_; ++i) inputs_[size_t(i)] = staged(i, half(), rank_);
            if (lies) inputs_[size_t(rank_)] = lies + mine.low;
            reduce(mine.low, mine.bytes, staged(rank_, next(), size_));
            if (chunk > 0) results(chunk - 1, half());
            if (chunk + 1 < chunks) stage_chunk(chunk + 1, next());
            barrier();
        }
        results(chunks - 1, half());
    }

    std::vector<char*> heaps_;
    std::vector<int64_t> processes_;
    std::vector<Window> windows_;
    Layout layout_;
    Slots slots_;
    int rank_, size_, spins_;
    int header_half_ = 0;
    uint64_t epoch_ = 0;
    // Of the collective that runs
    const Parcel* parcel_ = nullptr;
    char* const* sources_ = nullptr;
    char* const* targets_ = nullptr;
    bool past_caches_ = false, wide_ = false;
    int64_t width_ = 0;
    bool hand_out_past_caches_ = true, measures_ = false;
    double waited_ = 0;
    std::array<Habit, 64> habits_{};
    std::vector<const void*> inputs_ = std::vector<const void*>(size_t(size_));
};

}  // namespace spmdx
