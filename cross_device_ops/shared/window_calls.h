// A call as a rank shows it in its window, as the others read it there, and the parts of it that
// they do on each other's memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "cross_device_ops/shared/window_group.h"

namespace tutti::internal {

/// The calls of the group's round. The headers are equal, so all but addresses, and the counts of
/// an all_to_all, is in each as in this rank's. A call's buffers, one after the other, are its
/// *elements*. *Part* r of a reduction of n elements is [n * r / size, n * (r + 1) / size), cut at
/// multiples of 64 elements; of a copy it is rank r's result. Reductions go along the canonical
/// tree. One thread.
class WindowCalls {
 public:
  explicit WindowCalls(const WindowGroup& group);

  /// Fills the own seat, before arriving: small inputs as a copy, otherwise where buffers are.
  void show(const CollectiveCall& call, const CollectiveHeader& header);

  /// After arriving: what can be done with what all have shown.
  enum class Way { kInline, kShared, kNeither };
  Way way();
  /// Of an all_reduce or reduce that is shown inline: this rank's result.
  void combine_inline(const CollectiveCall& call);

  /// Reads and writes all ranks' memory where it lies. `call`: this rank's.
  void do_part(const CollectiveCall& call, int part);
  /// Throws kInvalidArgument if two ranks' calls differ, naming both; and if what rank r of an
  /// all_to_all sends to rank s is not as long as s expects.
  void require_same_call(const CollectiveCall& call) const;

 private:
  // What the ranks have shown, in this process's addresses; not of kNeither. Of a call that is
  // shown inline a rank has one input (of a broadcast the root's output) and sees no outputs but
  // its own.
  const std::byte* input(int rank, std::size_t buffer) const {
    if (is_inline_) return inline_data(rank);
    return shared_data(rank, buffer == 0 ? seat(rank).first_input : offsets(rank)[buffer]);
  }
  std::byte* output(int rank, std::size_t buffer) const {
    if (is_inline_) {
      return rank == group_.rank() ? own_->outputs[buffer].data : inline_data(rank);
    }
    return shared_data(rank, buffer == 0 ? seat(rank).first_output
                                         : offsets(rank)[WindowLayout::kMostBuffers + buffer]);
  }
  bool in_place(int rank) const { return (seat(rank).flags & WindowSeat::kIsInPlace) != 0; }
  /// Of an all_to_all, [size] each.
  const std::uint64_t* counts(int rank) const { return group_.window(rank).counts(group_.round()); }
  const std::uint64_t* receive_counts(int rank) const { return counts(rank) + group_.size(); }

  const WindowSeat& seat(int rank) const { return group_.window(rank).seat(group_.round()); }
  std::byte* inline_data(int rank) const { return group_.window(rank).inline_data(group_.round()); }
  const std::uint64_t* offsets(int rank) const {
    return group_.window(rank).offsets(group_.round());
  }
  std::byte* shared_data(int rank, std::uint64_t offset) const {
    return group_.window(rank).in_place_of_rank(offset);
  }
  bool show_inline(const CollectiveCall& call);
  bool show_offsets(const CollectiveCall& call);
  std::size_t inline_limit(const CollectiveCall& call) const;
  void combine_part(const CollectiveCall& call, int part);
  void combine(const CollectiveCall& call, std::size_t buffer, std::size_t begin, std::size_t end);
  void combine_for(const CollectiveCall& call, int rank);
  void gather_for(const CollectiveCall& call, int rank) const;
  void exchange_for(const CollectiveCall& call, int rank) const;

  const WindowGroup& group_;
  const CollectiveCall* own_ = nullptr;  // of the round
  bool is_inline_ = false;
  // Starts of a range in every rank's memory, kept to spare the allocation.
  std::vector<const std::byte*> inputs_;
  std::vector<std::byte*> outputs_;
};

}  // namespace tutti::internal
