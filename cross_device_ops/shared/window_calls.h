// Calls that the ranks of a group publish in their windows, and their execution in shared memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "cross_device_ops/shared/window_group.h"

namespace tutti::internal {

/// The calls of all ranks in the current round. Their headers are equal, so the calls differ only
/// in their addresses and, for an all_to_all, in their counts. The concatenated buffers of a call
/// are its *elements*. *Part* r of a reduction of n elements is [n * r / size, n * (r + 1) / size);
/// within a buffer, its bounds are rounded down to multiples of 64 elements. Part r of a copy is
/// rank r's result. Reductions follow the canonical tree. Not thread-safe.
class WindowCalls {
 public:
  explicit WindowCalls(const WindowGroup& group);

  /// Publishes this rank's call in its entry: copies of small inputs, or the offsets of buffers
  /// that peers can access. Called before the rank arrives.
  void show(const CollectiveCall& call, const CollectiveHeader& header);

  /// Method for executing the call; it depends on the data that all ranks have published. way()
  /// requires that all ranks have arrived.
  enum class Way { kInline, kShared, kNeither };
  Way way();
  /// Computes this rank's result of an all_reduce or reduce with inline data.
  void combine_inline(const CollectiveCall& call);

  /// Processes one part, reading and writing all ranks' memory in place. `call`: this rank's call.
  void do_part(const CollectiveCall& call, int part);
  /// Throws kInvalidArgument if two ranks' calls differ, naming both, or if, in an all_to_all, rank
  /// r does not send rank s the length that s expects.
  void require_same_call(const CollectiveCall& call) const;

 private:
  // Data published by the ranks, at this process's addresses; not valid for kNeither. In an inline
  // call, each rank publishes one input (in a broadcast, the root's output), and only this rank's
  // own outputs are accessible.
  const std::byte* input(int rank, std::size_t buffer) const {
    if (is_inline_) return inline_data(rank);
    return shared_data(rank, buffer == 0 ? entry(rank).first_input : offsets(rank)[buffer]);
  }
  std::byte* output(int rank, std::size_t buffer) const {
    if (is_inline_) {
      return rank == group_.rank() ? own_->outputs[buffer].data : inline_data(rank);
    }
    return shared_data(rank, buffer == 0 ? entry(rank).first_output
                                         : offsets(rank)[WindowLayout::kMostBuffers + buffer]);
  }
  bool in_place(int rank) const { return (entry(rank).flags & WindowEntry::kIsInPlace) != 0; }
  /// Return a rank's counts for an all_to_all: arrays of length `size`.
  const std::uint64_t* counts(int rank) const { return group_.window(rank).counts(group_.round()); }
  const std::uint64_t* receive_counts(int rank) const { return counts(rank) + group_.size(); }

  const WindowEntry& entry(int rank) const { return group_.window(rank).entry(group_.round()); }
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
  const CollectiveCall* own_ = nullptr;  // this rank's call in this round
  bool is_inline_ = false;
  // Scratch space for the addresses of one range in each rank's memory; a member, to avoid
  // allocations.
  std::vector<const std::byte*> inputs_;
  std::vector<std::byte*> outputs_;
};

}  // namespace tutti::internal
