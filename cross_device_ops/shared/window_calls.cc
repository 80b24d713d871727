// Writing calls into seats, reading them, and results of small ones.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/shared/window_calls.h"

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

bool has_outputs(const CollectiveCall& call, int rank) {
  return call.collective != Collective::kReduce || rank == call.root;
}

}  // namespace

WindowCalls::WindowCalls(const WindowGroup& group)
    : group_(group), calls_(index(group.size())), inputs_(index(group.size())) {}

/// Every rank reads what all others show: with many ranks, or with rendezvous that cost little, it
/// pays only for less.
std::size_t WindowCalls::inline_limit(const CollectiveCall& call) const {
  const std::size_t n = index(group_.size());
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
  if (call.collective == Collective::kAllToAll) show_counts(call);
  // A second meeting costs less than copies of some KiB where nobody has to be woken for it.
  constexpr std::size_t kWorthASecondMeeting = 4096;
  const bool may_be_large = call.count * size_of(call.dtype) > kWorthASecondMeeting &&
                            call.collective == Collective::kAllReduce && !group_.shares_parts();
  if (may_be_large && show_offsets(call)) {
    seat.flags = WindowSeat::kIsShared;
  } else if (show_inline(call)) {
    seat.flags = WindowSeat::kIsInline;
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
  const HostMemory& memory = group_.memory();
  if (std::max(call.inputs.size(), call.outputs.size()) > WindowLayout::kMostBuffers) return false;
  std::uint64_t* const offsets = group_.own().offsets(group_.round());
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    const auto offset = memory.offset_of(call.inputs[i].data, call.inputs[i].num_bytes());
    if (!offset) return false;
    offsets[i] = *offset;
  }
  for (std::size_t i = 0; has_outputs(call, group_.rank()) && i < call.outputs.size(); ++i) {
    const auto offset = memory.offset_of(call.outputs[i].data, call.outputs[i].num_bytes());
    if (!offset) return false;
    offsets[WindowLayout::kMostBuffers + i] = *offset;
  }
  return true;
}

void WindowCalls::show_counts(const CollectiveCall& call) {
  std::uint64_t* const counts = group_.own().counts(group_.round());
  std::ranges::copy(call.counts, counts);
  std::ranges::copy(call.receive_counts, counts + call.counts.size());
}

WindowCalls::Way WindowCalls::way() const {
  std::uint32_t common = WindowSeat::kIsInline | WindowSeat::kIsShared;
  for (int r = 0; r < group_.size(); ++r) common &= group_.window(r).seat(group_.round()).flags;
  if ((common & WindowSeat::kIsInline) != 0) return Way::kInline;
  return (common & WindowSeat::kIsShared) != 0 ? Way::kShared : Way::kNeither;
}

void WindowCalls::read(const CollectiveCall& own, Way way) {
  for (int r = 0; r < group_.size(); ++r) read_call(r, own, way);
}

/// The headers are equal, so all but addresses, and the counts of an all_to_all, is as here. Of
/// inputs that are shown inline there is one.
void WindowCalls::read_call(int rank, const CollectiveCall& own, Way way) {
  ReadCall& read = calls_[index(rank)];
  const Window& window = group_.window(rank);
  const std::uint64_t round = group_.round();
  read.call = own;
  if (own.collective == Collective::kAllToAll) {
    const std::uint64_t* const counts = window.counts(round);
    const auto n = index(group_.size());
    read.counts.assign(counts, counts + n);
    read.receive_counts.assign(counts + n, counts + 2 * n);
    read.call.counts = read.counts;
    read.call.receive_counts = read.receive_counts;
  }
  const std::uint64_t* const offsets = window.offsets(round);
  const auto place_of = [&](std::size_t i) {
    return way == Way::kInline ? window.inline_data(round) : window.in_place_of_rank(offsets[i]);
  };
  read.inputs.assign(own.inputs.begin(), own.inputs.end());
  for (std::size_t i = 0; i < read.inputs.size(); ++i) read.inputs[i].data = place_of(i);
  const bool has_output = has_outputs(own, rank);
  // Not every rank has outputs: of a reduce the root's is as long as any input.
  read.outputs.clear();
  const std::size_t num_outputs =
      own.collective == Collective::kReduce ? own.inputs.size() : own.outputs.size();
  for (std::size_t i = 0; has_output && i < num_outputs; ++i) {
    const std::size_t count =
        own.collective == Collective::kReduce ? own.inputs[i].count : own.outputs[i].count;
    read.outputs.emplace_back(place_of(WindowLayout::kMostBuffers + i), count, own.dtype);
  }
  if (own.collective == Collective::kAllGather) read.inputs[0].count = own.counts[index(rank)];
  if (own.collective == Collective::kReduceScatter) {
    read.outputs[0].count = own.counts[index(rank)];
  }
  read.call.inputs = read.inputs;
  read.call.outputs = read.outputs;
  if (rank == group_.rank()) read.call.outputs = own.outputs;
}

void WindowCalls::combine_inline(const CollectiveCall& call) {
  if (!has_outputs(call, group_.rank())) return;
  std::size_t begin = 0;  // bytes
  for (const Elements& output : call.outputs) {
    for (int r = 0; r < group_.size(); ++r) {
      inputs_[index(r)] = group_.window(r).inline_data(group_.round()) + begin;
    }
    reduce_along_tree(call.op, call.dtype, inputs_, output.data, output.count);
    begin += output.num_bytes();
  }
}

}  // namespace tutti::internal
