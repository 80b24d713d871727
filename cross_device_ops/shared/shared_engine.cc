// Collectives in memory that all ranks can access.
// SPDX-License-Identifier: Apache-2.0
//
// Steps: all ranks publish their calls and arrive. If the data is inline, each rank combines or
// copies all of it by itself, and the call ends. Otherwise each part (window_calls.h) is processed
// by one rank, which reads and writes all ranks' memory in place, and all ranks wait for all parts.
// An all-reduce of S bytes per rank reads size * S and writes size * S bytes in total, the minimum
// for results in every rank's memory.
#include "cross_device_ops/collective_engine.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "cross_device_ops/reduce_to_all.h"
#include "cross_device_ops/shared/window_calls.h"
#include "cross_device_ops/shared/window_group.h"

namespace tutti::internal {

namespace {

constexpr std::size_t kGrain = 64;  // elements

}  // namespace

/// Implements all_reduce through slots in shared memory, for buffers that peers cannot access.
/// Element i of a call is element i of its concatenated buffers.
/// *Slice* r is combined by rank r, in *steps* of at most a slot. In step k a rank
///   - copies its values of every other rank's slice into its slots (`sent`),
///   - combines all ranks' values of its own slice into its output and a slot (`reduced`),
///   - copies the other ranks' results into its output (`collected`).
/// These three parts of different steps overlap, so that slots stay in caches and ranks seldom
/// wait. Step numbers continue from call to call. Not thread-safe.
class StagedReduction {
 public:
  explicit StagedReduction(WindowGroup& group)
      : group_(group), inputs_(static_cast<std::size_t>(group.size())) {}
  /// Carries out the call. Requires: all ranks have arrived.
  void run(const CollectiveCall& call, TimePoint deadline) {
    call_ = &call;
    element_ = size_of(call.dtype);
    firsts_.clear();
    std::size_t first = 0;
    for (const Elements& output : call.outputs) {
      firsts_.push_back(first);
      first += output.count;
    }
    std::size_t longest = 0;
    for (int r = 0; r < group_.size(); ++r) longest = std::max(longest, slice(r).count);
    // Short slices are split into a few steps, so that ranks work concurrently. Each step has at
    // least 16 KiB, because shorter steps would cost more than they gain. Steps of long slices fit
    // in the caches.
    const std::size_t most = group_.layout().slot_bytes / element_;
    step_ =
        std::clamp((longest / 4 + kGrain - 1) / kGrain * kGrain, std::min(most, 16384 / element_),
                   longest * element_ > (std::size_t{8} << 20) ? most : (most + 1) / 2);
    const std::size_t num_steps = (longest + step_ - 1) / step_;
    for (std::size_t k = 0; k < num_steps + 2; ++k) {
      if (k < num_steps) contribute(k, deadline);
      if (k >= 1 && k - 1 < num_steps) combine(k - 1, deadline);
      if (k >= 2) collect(k - 2, deadline);
    }
    base_ += num_steps;
  }

 private:
  struct Range {
    std::size_t begin = 0;
    std::size_t count = 0;
  };
  Range slice(int rank) const {
    const auto r = static_cast<std::size_t>(rank), n = static_cast<std::size_t>(group_.size());
    const std::size_t begin = call_->count * r / n / kGrain * kGrain;
    const std::size_t end =
        r + 1 == n ? call_->count : call_->count * (r + 1) / n / kGrain * kGrain;
    return {begin, end - begin};
  }
  Range segment(int rank, std::size_t step) const {
    const Range all = slice(rank);
    const std::size_t begin = std::min(all.count, step * step_);
    return {all.begin + begin, std::min(step_, all.count - begin)};
  }
  void contribute(std::size_t step, TimePoint deadline) {
    const std::uint64_t now = base_ + step;
    // Wait until the slots' previous content has been used.
    group_.wait_for("combine", deadline, [&] {
      group_.need_slots();
      for (int r = 0; r < group_.size(); ++r) {
        const auto& reduced = group_.window(r).progress().reduced;
        if (r != group_.rank() && reduced.load() + WindowLayout::kDepth < now + 1) return false;
      }
      return true;
    });
    for (int d = 1; d < group_.size(); ++d) {
      const int to = (group_.rank() + d) % group_.size();
      std::byte* const slot = group_.own().slot(static_cast<std::size_t>(to), now);
      for_each_piece(segment(to, step),
                     [&](std::size_t buffer, std::size_t first, std::size_t at, std::size_t count) {
                       std::memcpy(slot + at * element_,
                                   call_->inputs[buffer].data + first * element_, count * element_);
                     });
    }
    group_.own().progress().sent.store(now + 1);
    group_.notify();
  }
  void combine(std::size_t step, TimePoint deadline) {
    const std::uint64_t now = base_ + step;
    group_.wait_for("send their values", deadline, [&] {
      for (int r = 0; r < group_.size(); ++r) {
        const WindowProgress& other = group_.window(r).progress();
        if (r == group_.rank()) continue;
        if (other.sent.load() < now + 1) return false;
        if (other.collected.load() + WindowLayout::kDepth < now + 1) return false;
      }
      return true;
    });
    const auto own = static_cast<std::size_t>(group_.rank());
    std::byte* const result = group_.own().slot(own, now);
    for_each_piece(segment(group_.rank(), step), [&](std::size_t buffer, std::size_t first,
                                                     std::size_t at, std::size_t count) {
      for (std::size_t r = 0; r < inputs_.size(); ++r) {
        inputs_[r] = r == own ? call_->inputs[buffer].data + first * element_
                              : group_.window(static_cast<int>(r)).slot(own, now) + at * element_;
      }
      std::byte* const outputs[] = {call_->outputs[buffer].data + first * element_,
                                    result + at * element_};
      reduce_to_all(call_->op, call_->dtype, inputs_, outputs, count);
    });
    group_.own().progress().reduced.store(now + 1);
    group_.notify();
  }
  void collect(std::size_t step, TimePoint deadline) {
    const std::uint64_t now = base_ + step;
    for (int d = 1; d < group_.size(); ++d) {
      const int from = (group_.rank() + d) % group_.size();
      const Window& window = group_.window(from);
      group_.wait_for("combine", deadline,
                      [&] { return window.progress().reduced.load() >= now + 1; });
      const std::byte* const slot = window.slot(static_cast<std::size_t>(from), now);
      for_each_piece(segment(from, step),
                     [&](std::size_t buffer, std::size_t first, std::size_t at, std::size_t count) {
                       std::memcpy(call_->outputs[buffer].data + first * element_,
                                   slot + at * element_, count * element_);
                     });
    }
    group_.own().progress().collected.store(now + 1);
    group_.notify();
  }
  /// Splits a range at buffer boundaries: calls body(buffer, first, at, count) for each piece of
  /// `count` elements, which begins at element `first` of the buffer and at offset `at` of the
  /// range.
  template <class Body>
  void for_each_piece(Range range, const Body& body) const {
    if (range.count == 0) return;
    const auto after = std::ranges::upper_bound(firsts_, range.begin);
    auto buffer = static_cast<std::size_t>(after - firsts_.begin()) - 1;
    for (std::size_t at = 0; at < range.count; ++buffer) {
      const std::size_t first = range.begin + at - firsts_[buffer];
      const std::size_t count = std::min(range.count - at, call_->outputs[buffer].count - first);
      if (count > 0) body(buffer, first, at, count);
      at += count;
    }
  }

  WindowGroup& group_;
  const CollectiveCall* call_ = nullptr;
  std::size_t element_ = 0;          // in bytes
  std::size_t step_ = 0;             // in elements
  std::uint64_t base_ = 0;           // number of steps in earlier calls
  std::vector<std::size_t> firsts_;  // first element of each buffer
  std::vector<const std::byte*> inputs_;
};

namespace {

/// Engine for ranks that are threads or processes of one host. Uses `messages` for calls in which
/// ranks cannot access each other's memory.
class SharedEngine final : public CollectiveEngine {
 public:
  SharedEngine(RankLink link, std::unique_ptr<CollectiveEngine> messages)
      : link_(std::move(link)),
        messages_(std::move(messages)),
        allocator_(allocator_in(link_.transport->host_memory())),
        group_(link_, link_.transport->host_memory()),
        calls_(group_),
        staged_(group_) {}

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  std::string_view name() const override { return "canonical"; }
  bool supports(Collective collective, ReduceOp op, DType dtype) const override {
    return !combines(collective) || can_combine(op, dtype);
  }
  Determinism determinism() const override { return Determinism::kCanonical; }
  bool takes_lists() const override { return true; }
  std::shared_ptr<BufferAllocator> allocator() override { return allocator_; }

  void run(const CollectiveCall& call, const CollectiveHeader& header,
           TimePoint deadline) override {
    group_.begin_round(header, deadline);
    calls_.show(call, header);
    group_.arrive(header, deadline);
    try {
      calls_.require_same_call(call);
    } catch (const Error& error) {
      // Every rank has arrived and finds the same mismatch.
      group_.close(error);
      throw;
    }
    switch (calls_.way()) {
      case WindowCalls::Way::kInline:
        return finish_inline(call);
      case WindowCalls::Way::kShared:
        return work_in_place(call, deadline);
      case WindowCalls::Way::kNeither:
        if (call.collective == Collective::kAllReduce) return staged_.run(call, deadline);
        return messages_->run(call, header, deadline);
    }
  }
  void abort(const Error& reason) noexcept override {
    group_.close(Error(ErrorCode::kAborted, reason.message()));
    messages_->abort(reason);
  }
  std::optional<Error> failure_of_peer() override {
    if (auto failure = group_.failure()) return failure;
    return messages_->failure_of_peer();
  }
  std::unique_ptr<CollectiveEngine> subgroup(const std::vector<int>& ranks,
                                             std::uint32_t number) override {
    return std::make_unique<SharedEngine>(link_.subgroup(ranks, number),
                                          messages_->subgroup(ranks, number));
  }
  void answer_state_queries(const std::function<std::string()>& own_state) override {
    messages_->answer_state_queries(own_state);
  }
  std::vector<std::string> states_of_ranks(TimePoint deadline) override {
    return messages_->states_of_ranks(deadline);
  }

 private:
  /// Computes this rank's result from all ranks' inline data. That data is a copy, so no other rank
  /// has to wait until this rank has read it.
  void finish_inline(const CollectiveCall& call) {
    if (call.collective == Collective::kAllReduce || call.collective == Collective::kReduce) {
      return calls_.combine_inline(call);
    }
    calls_.do_part(call, rank());
  }
  void work_in_place(const CollectiveCall& call, TimePoint deadline) {
    group_.begin_parts();
    if (group_.shares_parts()) {
      for (int part = group_.take_part(); part >= 0; part = group_.take_part()) {
        calls_.do_part(call, part);
        group_.finish_part();
      }
    } else {
      calls_.do_part(call, rank());
      group_.finish_part();
    }
    group_.leave(deadline);
  }

  const RankLink link_;
  const std::unique_ptr<CollectiveEngine> messages_;
  const std::shared_ptr<BufferAllocator> allocator_;
  WindowGroup group_;
  WindowCalls calls_;
  StagedReduction staged_;
};

}  // namespace

std::unique_ptr<CollectiveEngine> window_engine(std::shared_ptr<Transport> transport) {
  RankLink link = link_all(transport);
  return std::make_unique<SharedEngine>(std::move(link),
                                        message_engine(std::move(transport), "canonical"));
}

}  // namespace tutti::internal
