// Implements WindowCalls, which publishes and reads entries and computes the results of inline
// calls.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/shared/window_calls.h"

#include <algorithm>
#include <cstring>

#include "cross_device_ops/reduce_to_all.h"
#include "tutti/cross_device_ops/cross_device_ops.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kPartGrain = 64;  // elements
// Total cache size across all ranks, in bytes. Larger buffers are read from memory in every call.
constexpr std::size_t kCaches = 16 << 20;

void copy_bytes(const std::byte* from, std::byte* to, std::size_t bytes) {
  if (bytes > 0 && from != to) std::memcpy(to, from, bytes);
}

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

// Calls body() for each buffer of this rank that other ranks read. In a broadcast, only the root
// has one.
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
    : group_(group), inputs_(index(group.size())), outputs_(inputs_.size()) {}

/// Returns the limit for inline data. Every rank reads the inline data of all others, so the limit
/// is lower for many ranks. It is also lower where synchronisation is cheap, because in-place
/// access needs a second synchronisation.
std::size_t WindowCalls::inline_limit(const CollectiveCall& call) const {
  const std::size_t n = inputs_.size();
  // Threads can access each other's buffers in place. That takes a second synchronisation but reads
  // less memory. With 2 ranks, 1 KiB takes 0.94 us inline and 0.8 us in place; 4 bytes take 0.37 us
  // inline and 0.55 us in place.
  if (group_.of_threads()) return 256;
  if (call.collective == Collective::kBroadcast) return WindowLayout::kInlineBytes;
  const std::size_t all =
      group_.shares_parts() ? 4 * WindowLayout::kInlineBytes : WindowLayout::kInlineBytes / 2;
  return std::min(WindowLayout::kInlineBytes, all / n);
}

void WindowCalls::show(const CollectiveCall& call, const CollectiveHeader& header) {
  WindowEntry& entry = group_.own().entry(group_.round());
  entry.fingerprint = header.fingerprint();
  entry.header = header;
  entry.flags = 0;
  own_ = &call;
  if (call.collective == Collective::kAllToAll) {
    std::uint64_t* const counts = group_.own().counts(group_.round());
    std::ranges::copy(call.counts, counts);
    std::ranges::copy(call.receive_counts, counts + call.counts.size());
  }
  // If no thread is asleep, a second synchronisation costs less than copying a few KiB.
  constexpr std::size_t kMinBytesForSecondSync = 4096;
  const bool may_be_large = call.count * size_of(call.dtype) > kMinBytesForSecondSync &&
                            call.collective == Collective::kAllReduce && !group_.shares_parts();
  if (may_be_large && show_offsets(call)) {
    entry.flags = WindowEntry::kIsShared;
  } else if (show_inline(call)) {
    entry.flags = WindowEntry::kIsInline;
    // Inline data is usable only if every rank's data fits. In an all_to_all, other ranks may have
    // more data, so this rank publishes offsets, too.
    const bool may_differ = call.collective == Collective::kAllToAll;
    if (may_differ && show_offsets(call)) entry.flags |= WindowEntry::kIsShared;
  } else if (show_offsets(call)) {
    entry.flags = WindowEntry::kIsShared;
  }
  if (is_in_place(call)) entry.flags |= WindowEntry::kIsInPlace;
}

bool WindowCalls::show_inline(const CollectiveCall& call) {
  std::size_t bytes = 0;
  if (call.collective == Collective::kBroadcast) {
    bytes = call.outputs[0].num_bytes();  // equal on all ranks, so all make the same choice
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
  WindowEntry& entry = group_.own().entry(group_.round());
  std::uint64_t* const offsets = group_.own().offsets(group_.round());
  const auto show_all = [&](const auto& list, std::uint64_t& first, std::uint64_t* all) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      std::uint64_t& offset = i == 0 ? first : all[i];
      if (!group_.find_offset(list[i].data, list[i].num_bytes(), offset)) return false;
    }
    return true;
  };
  return show_all(call.inputs, entry.first_input, offsets) &&
         (!has_outputs(call, group_.rank()) ||
          show_all(call.outputs, entry.first_output, offsets + WindowLayout::kMostBuffers));
}

WindowCalls::Way WindowCalls::way() {
  std::uint32_t common = WindowEntry::kIsInline | WindowEntry::kIsShared;
  for (int r = 0; r < group_.size(); ++r) common &= entry(r).flags;
  is_inline_ = (common & WindowEntry::kIsInline) != 0;
  if (is_inline_) return Way::kInline;
  return (common & WindowEntry::kIsShared) != 0 ? Way::kShared : Way::kNeither;
}

void WindowCalls::combine_inline(const CollectiveCall& call) {
  if (!has_outputs(call, group_.rank())) return;
  std::size_t begin = 0;  // in bytes
  for (const Elements& output : call.outputs) {
    for (int r = 0; r < group_.size(); ++r) {
      inputs_[index(r)] = inline_data(r) + begin;
    }
    reduce_along_tree(call.op, call.dtype, inputs_, output.data, output.count);
    begin += output.num_bytes();
  }
}

void WindowCalls::require_same_call(const CollectiveCall& call) const {
  for (int r = 1; r < group_.size(); ++r) {
    if (entry(r).fingerprint == entry(0).fingerprint) continue;
    fail(ErrorCode::kInvalidArgument, mismatch_message(entry(0).header, entry(r).header));
  }
  if (call.collective != Collective::kAllToAll) return;
  for (int r = 0; r < group_.size(); ++r) {
    for (int s = 0; s < group_.size(); ++s) {
      const std::size_t sent = counts(r)[index(s)];
      const std::size_t expected = receive_counts(s)[index(r)];
      if (sent == expected) continue;
      fail(ErrorCode::kInvalidArgument, "collective mismatch (count): rank ", r, " sends ", sent,
           " elements to rank ", s, ", which expects ", expected, ": rank ", r, " calls ",
           entry(r).header.describe(), "; rank ", s, " calls ", entry(s).header.describe());
    }
  }
}

void WindowCalls::do_part(const CollectiveCall& call, int part) {
  switch (call.collective) {
    case Collective::kAllReduce:
    case Collective::kReduce:
      return combine_part(call, part);
    case Collective::kReduceScatter:
      return combine_for(call, part);
    case Collective::kBroadcast:
      return copy_bytes(output(call.root, 0), output(part, 0), call.outputs[0].num_bytes());
    case Collective::kAllGather:
      return gather_for(call, part);
    case Collective::kAllToAll:
      return exchange_for(call, part);
    case Collective::kBarrier:
      return;
  }
}

void WindowCalls::combine_part(const CollectiveCall& call, int part) {
  const auto ranks = static_cast<std::size_t>(group_.size());
  const std::size_t begin = call.count * index(part) / ranks;
  const std::size_t end = call.count * index(part + 1) / ranks;
  const bool is_last = index(part) + 1 == ranks;
  std::size_t first = 0;  // index of the buffer's first element in the call
  for (std::size_t b = 0; b < call.inputs.size() && first < end; ++b) {
    const std::size_t count = call.inputs[b].count;
    // Rounds down, so that in most buffers each part ends at a cache-line boundary.
    const auto cut = [&](std::size_t place) {
      return place >= first + count ? count
             : place <= first       ? 0
                                    : (place - first) / kPartGrain * kPartGrain;
    };
    const std::size_t from = cut(begin);
    const std::size_t to = is_last ? count : cut(end);
    if (from < to) combine(call, b, from, to);
    first += count;
  }
}

void WindowCalls::combine(const CollectiveCall& call, std::size_t buffer, std::size_t begin,
                          std::size_t end) {
  const std::size_t size_of_element = size_of(call.dtype);
  const std::size_t offset = begin * size_of_element;
  for (int r = 0; r < group_.size(); ++r) {
    if (call.collective == Collective::kAllReduce) {
      outputs_[index(r)] = output(r, buffer) + offset;
      inputs_[index(r)] = outputs_[index(r)];
      // For in-place calls, the inputs are the outputs. The list of inputs is not read, because
      // that would cost a cache miss.
      if (in_place(r)) continue;
    }
    inputs_[index(r)] = input(r, buffer) + offset;
  }
  if (call.collective == Collective::kAllReduce) {
    const bool past_caches = call.count * size_of_element * index(group_.size()) > kCaches;
    return reduce_to_all(call.op, call.dtype, inputs_, outputs_, end - begin,
                         past_caches ? kAheadBytes : 0);
  }
  reduce_along_tree(call.op, call.dtype, inputs_, output(call.root, 0) + offset, end - begin);
}

void WindowCalls::combine_for(const CollectiveCall& call, int rank) {
  std::size_t begin = 0;
  for (int r = 0; r < rank; ++r) begin += call.counts[index(r)];
  for (int r = 0; r < group_.size(); ++r) {
    inputs_[index(r)] = input(r, 0) + begin * size_of(call.dtype);
  }
  reduce_along_tree(call.op, call.dtype, inputs_, output(rank, 0), call.counts[index(rank)]);
}

void WindowCalls::gather_for(const CollectiveCall& call, int rank) const {
  std::byte* place = output(rank, 0);
  for (int r = 0; r < group_.size(); ++r) {
    const std::size_t bytes = call.counts[index(r)] * size_of(call.dtype);
    copy_bytes(input(r, 0), place, bytes);
    place += bytes;
  }
}

void WindowCalls::exchange_for(const CollectiveCall& call, int rank) const {
  std::byte* place = output(rank, 0);
  for (int r = 0; r < group_.size(); ++r) {
    std::size_t begin = 0;
    for (int s = 0; s < rank; ++s) begin += counts(r)[index(s)];
    const std::size_t bytes = receive_counts(rank)[index(r)] * size_of(call.dtype);
    copy_bytes(input(r, 0) + begin * size_of(call.dtype), place, bytes);
    place += bytes;
  }
}

}  // namespace tutti::internal
