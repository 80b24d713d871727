// A call as a rank shows it in its window, and as the others read it there.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tutti/cross_device_ops/shared/group_parts.h"
#include "tutti/cross_device_ops/shared/window_group.h"

namespace tutti::internal {

/// The calls of the group's round. One thread.
class WindowCalls final : public GroupCalls {
 public:
  explicit WindowCalls(const WindowGroup& group);

  /// Fills the own seat, before arriving: small inputs as a copy, otherwise where buffers are.
  void show(const CollectiveCall& call, const CollectiveHeader& header);

  /// After arriving: what can be done with what all have shown.
  enum class Way { kInline, kShared, kNeither };
  Way way() const;
  /// Makes all ranks' calls readable where they are shown, `own` being this rank's. Not of
  /// kNeither, nor of an inline call that combine_inline() does.
  void read(const CollectiveCall& own, Way way);
  /// Of an all_reduce or reduce that is shown inline: this rank's result.
  void combine_inline(const CollectiveCall& call);

  const CollectiveCall& call(int rank) const override { return calls_[index(rank)].call; }
  const CollectiveHeader& header(int rank) const override {
    return group_.window(rank).seat(group_.round()).header;
  }
  std::byte* output(int rank, std::size_t buffer) const override {
    return calls_[index(rank)].outputs[buffer].data;
  }
  bool in_place(int rank) const override {
    return (group_.window(rank).seat(group_.round()).flags & WindowSeat::kIsInPlace) != 0;
  }

 private:
  struct ReadCall {
    CollectiveCall call;
    std::vector<ConstElements> inputs;
    std::vector<Elements> outputs;
    std::vector<std::size_t> counts;
    std::vector<std::size_t> receive_counts;
  };
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  bool show_inline(const CollectiveCall& call);
  bool show_offsets(const CollectiveCall& call);
  void show_counts(const CollectiveCall& call);
  void read_call(int rank, const CollectiveCall& own, Way way);
  std::size_t inline_limit(const CollectiveCall& call) const;

  const WindowGroup& group_;
  std::vector<ReadCall> calls_;  // by rank
  std::vector<const std::byte*> inputs_;
};

}  // namespace tutti::internal
