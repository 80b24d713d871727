// Writing calls into seats, reading them, and results of small ones.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/shared/window_calls.h"

#include <algorithm>
#include <cstring>

#include "tutti/cross_device_ops/cross_device_ops.h"

namespace tutti::internal {
namespace {

// What a rank gives to others: of a broadcast the root's buffer.
template <class Body>
void for_each_given(const CollectiveCall& call, int rank, const Body& body) {
  if (call.collective == Collective::kBroadcast) {
    if (rank == call.root) body(ConstElements(call.outputs[0]));
    return;
  }
  for (const ConstElements& input : call.inputs) body(input);
}

bool is_in_place(const CollectiveCall& call) {
  return std::ranges::equal(call.inputs, call.outputs, [](const auto& input, const auto& output) {
    return input.data == output.data;
  });
}

bool has_outputs(const CollectiveCall& call, int rank) {
  return call.collective != Collective::kReduce || rank == call.root;
}

}  // namespace

WindowCalls::WindowCalls(const WindowGroup& group)
    : group_(group), inputs_(static_cast<std::size_t>(group.size())) {}

/// Every rank reads what all others show: with many ranks, or with rendezvous that cost little, it
/// pays only for less.
std::size_t WindowCalls::inline_limit(const CollectiveCall& call) const {
  const std::size_t n = inputs_.size();
  // Threads reach all memory, and a second meeting is short beside what each would read: of 2 ranks
  // 1 KiB takes 0.94 us inline and 0.8 us where it lies, 4 bytes 0.37 us and 0.55 us.
  if (group_.of_threads()) return 256;
  if (call.collective == Collective::kBroadcast) return WindowLayout::kInlineBytes;
  const std::size_t all =
      group_.shares_parts() ? 4 * WindowLayout::kInlineBytes : WindowLayout::kInlineBytes / 2;
  return std::min(WindowLayout::kInlineBytes, all / n);
}

void WindowCalls::show(const CollectiveCall& call, const CollectiveHeader& header) {
  WindowSeat& seat = group_.own().seat(group_.round());
  seat.fingerprint = header.fingerprint();
  seat.header = header;
  seat.flags = 0;
  own_ = &call;
  if (call.collective == Collective::kAllToAll) {
    std::uint64_t* const counts = group_.own().counts(group_.round());
    std::ranges::copy(call.counts, counts);
    std::ranges::copy(call.receive_counts, counts + call.counts.size());
  }
  // A second meeting costs less than copies of some KiB where nobody has to be woken for it.
  constexpr std::size_t kWorthASecondMeeting = 4096;
  const bool may_be_large = call.count * size_of(call.dtype) > kWorthASecondMeeting &&
                            call.collective == Collective::kAllReduce && !group_.shares_parts();
  if (may_be_large && show_offsets(call)) {
    seat.flags = WindowSeat::kIsShared;
  } else if (show_inline(call)) {
    seat.flags = WindowSeat::kIsInline;
    // In an all_to_all others may bring too much for that.
    const bool may_differ = call.collective == Collective::kAllToAll;
    if (may_differ && show_offsets(call)) seat.flags |= WindowSeat::kIsShared;
  } else if (show_offsets(call)) {
    seat.flags = WindowSeat::kIsShared;
  }
  if (is_in_place(call)) seat.flags |= WindowSeat::kIsInPlace;
}

bool WindowCalls::show_inline(const CollectiveCall& call) {
  std::size_t bytes = 0;
  if (call.collective == Collective::kBroadcast) {
    bytes = call.outputs[0].num_bytes();  // of all ranks, so that all decide alike
  } else if (call.collective == Collective::kAllGather) {
    const auto counts = call.counts;
    bytes = *std::ranges::max_element(counts) * size_of(call.dtype);
  } else {
    for (const ConstElements& input : call.inputs) bytes += input.num_bytes();
  }
  if (bytes > inline_limit(call)) return false;
  std::byte* place = group_.own().inline_data(group_.round());
  for_each_given(call, group_.rank(), [&](const ConstElements& given) {
    if (given.count > 0) std::memcpy(place, given.data, given.num_bytes());
    place += given.num_bytes();
  });
  return true;
}

bool WindowCalls::show_offsets(const CollectiveCall& call) {
  if (std::max(call.inputs.size(), call.outputs.size()) > WindowLayout::kMostBuffers) return false;
  WindowSeat& seat = group_.own().seat(group_.round());
  std::uint64_t* const offsets = group_.own().offsets(group_.round());
  const auto show_all = [&](const auto& list, std::uint64_t& first, std::uint64_t* all) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      const auto offset = group_.offset_of(list[i].data, list[i].num_bytes());
      if (!offset) return false;
      (i == 0 ? first : all[i]) = *offset;
    }
    return true;
  };
  return show_all(call.inputs, seat.first_input, offsets) &&
         (!has_outputs(call, group_.rank()) ||
          show_all(call.outputs, seat.first_output, offsets + WindowLayout::kMostBuffers));
}

WindowCalls::Way WindowCalls::way() {
  std::uint32_t common = WindowSeat::kIsInline | WindowSeat::kIsShared;
  for (int r = 0; r < group_.size(); ++r) common &= seat(r).flags;
  is_inline_ = (common & WindowSeat::kIsInline) != 0;
  if (is_inline_) return Way::kInline;
  return (common & WindowSeat::kIsShared) != 0 ? Way::kShared : Way::kNeither;
}

void WindowCalls::combine_inline(const CollectiveCall& call) {
  if (!has_outputs(call, group_.rank())) return;
  std::size_t begin = 0;  // bytes
  for (const Elements& output : call.outputs) {
    for (int r = 0; r < group_.size(); ++r) {
      inputs_[static_cast<std::size_t>(r)] = inline_data(r) + begin;
    }
    reduce_along_tree(call.op, call.dtype, inputs_, output.data, output.count);
    begin += output.num_bytes();
  }
}

}  // namespace tutti::internal
