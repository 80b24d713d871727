// Parts of collectives on the memory of all ranks.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/shared/group_parts.h"

#include <cstring>

#include "cross_device_ops/reduce_to_all.h"
#include "cross_device_ops/shared/window_calls.h"
#include "tutti/cross_device_ops/cross_device_ops.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kPartGrain = 64;  // elements
// Of all ranks together: what is larger comes from memory in every call.
constexpr std::size_t kCaches = 16 << 20;

void copy_bytes(const std::byte* from, std::byte* to, std::size_t bytes) {
  if (bytes > 0 && from != to) std::memcpy(to, from, bytes);
}

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

}  // namespace

GroupParts::GroupParts(const WindowCalls& calls, int size)
    : calls_(calls), size_(size), inputs_(index(size)), outputs_(index(size)) {}

void GroupParts::require_counts_fit() const {
  for (int r = 0; r < size_; ++r) {
    for (int s = 0; s < size_; ++s) {
      const std::size_t sent = calls_.counts(r)[index(s)];
      const std::size_t expected = calls_.receive_counts(s)[index(r)];
      if (sent == expected) continue;
      fail(ErrorCode::kInvalidArgument, "collective mismatch (count): rank ", r, " sends ", sent,
           " elements to rank ", s, ", which expects ", expected, ": rank ", r, " calls ",
           calls_.header(r).describe(), "; rank ", s, " calls ", calls_.header(s).describe());
    }
  }
}

void GroupParts::do_part(const CollectiveCall& call, int part) {
  switch (call.collective) {
    case Collective::kAllReduce:
    case Collective::kReduce:
      return combine_part(call, part);
    case Collective::kReduceScatter:
      return combine_for(call, part);
    case Collective::kBroadcast:
      return copy_bytes(calls_.output(call.root, 0), calls_.output(part, 0),
                        call.outputs[0].num_bytes());
    case Collective::kAllGather:
      return gather_for(call, part);
    case Collective::kAllToAll:
      return exchange_for(call, part);
    case Collective::kBarrier:
      return;
  }
}

void GroupParts::combine_part(const CollectiveCall& call, int part) {
  const auto ranks = static_cast<std::size_t>(size_);
  const std::size_t begin = call.count * index(part) / ranks;
  const std::size_t end = call.count * index(part + 1) / ranks;
  const bool is_last = index(part) + 1 == ranks;
  std::size_t first = 0;  // of the buffer, among all elements
  for (std::size_t b = 0; b < call.inputs.size() && first < end; ++b) {
    const std::size_t count = call.inputs[b].count;
    // A part ends inside a buffer where a cache line of most buffers does.
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

void GroupParts::combine(const CollectiveCall& call, std::size_t buffer, std::size_t begin,
                         std::size_t end) {
  const std::size_t size_of_element = size_of(call.dtype);
  const std::size_t offset = begin * size_of_element;
  for (int r = 0; r < size_; ++r) {
    if (call.collective == Collective::kAllReduce) {
      outputs_[index(r)] = calls_.output(r, buffer) + offset;
      inputs_[index(r)] = outputs_[index(r)];
      // In place one list is read instead of two: each costs a cache miss.
      if (calls_.in_place(r)) continue;
    }
    inputs_[index(r)] = calls_.input(r, buffer) + offset;
  }
  if (call.collective == Collective::kAllReduce) {
    const bool past_caches = call.count * size_of_element * index(size_) > kCaches;
    return reduce_to_all(call.op, call.dtype, inputs_, outputs_, end - begin,
                         past_caches ? kAheadBytes : 0);
  }
  reduce_along_tree(call.op, call.dtype, inputs_, calls_.output(call.root, 0) + offset,
                    end - begin);
}

void GroupParts::combine_for(const CollectiveCall& call, int rank) {
  std::size_t begin = 0;
  for (int r = 0; r < rank; ++r) begin += call.counts[index(r)];
  for (int r = 0; r < size_; ++r) {
    inputs_[index(r)] = calls_.input(r, 0) + begin * size_of(call.dtype);
  }
  reduce_along_tree(call.op, call.dtype, inputs_, calls_.output(rank, 0), call.counts[index(rank)]);
}

void GroupParts::gather_for(const CollectiveCall& call, int rank) const {
  std::byte* place = calls_.output(rank, 0);
  for (int r = 0; r < size_; ++r) {
    const std::size_t bytes = call.counts[index(r)] * size_of(call.dtype);
    copy_bytes(calls_.input(r, 0), place, bytes);
    place += bytes;
  }
}

void GroupParts::exchange_for(const CollectiveCall& call, int rank) const {
  std::byte* place = calls_.output(rank, 0);
  for (int r = 0; r < size_; ++r) {
    std::size_t begin = 0;
    for (int s = 0; s < rank; ++s) begin += calls_.counts(r)[index(s)];
    const std::size_t bytes = calls_.receive_counts(rank)[index(r)] * size_of(call.dtype);
    copy_bytes(calls_.input(r, 0) + begin * size_of(call.dtype), place, bytes);
    place += bytes;
  }
}

}  // namespace tutti::internal
