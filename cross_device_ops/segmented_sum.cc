// CrossDeviceOps::sum_segments(): along the canonical tree without copies, and by any operation on
// copies.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <memory>

#include "cross_device_ops/reduce_to_all.h"
#include "tensor/half_conversion.h"
#include "tutti/cross_device_ops/cross_device_ops.h"
#include "tutti/tensor/buffer.h"

namespace tutti {
namespace {

using Segment = SegmentedSum::Segment;

/// Blocks of this size stay in a cache, so that what is done to values before and to sums
/// afterwards costs little beside the addition.
constexpr std::size_t kBlockBytes = std::size_t{64} << 10;

template <class Visitor>
void for_blocks(const SegmentedSum& sum, const Segment& segment, const Visitor& visitor) {
  const std::size_t block = kBlockBytes / size_of(sum.dtype);
  for (std::size_t begin = segment.begin; begin < segment.end; begin += block) {
    visitor(Segment{segment.variable, begin, std::min(segment.end, begin + block)});
  }
}

/// Adds along the tree, straight from the values. Threads: one.
class TreeAdder {
 public:
  explicit TreeAdder(const SegmentedSum& sum) : sum_(sum), inputs_(sum.replicas.size()) {
    if (sum.sum_dtype != sum.dtype) {
      wide_bytes_ = kBlockBytes / size_of(sum.dtype) * size_of(sum.sum_dtype);
    }
    if (sum.copies || wide_bytes_ > 0) make_copies();
  }

  void add(std::size_t index) {
    const Segment& segment = sum_.segments[index];
    const auto sums = std::span(sum_.sums).subspan(index * sum_.nodes.size(), sum_.nodes.size());
    if (!copies_ && !sum_.check) return add_block(segment, sums, 0, false);
    for_blocks(sum_, segment, [&](const Segment& block) {
      const std::size_t offset = (block.begin - segment.begin) * size_of(sum_.sum_dtype);
      add_block(block, sums, offset, sum_.clean_first);
      if (!sum_.check || !sum_.check(block, sums[0] + offset, sum_.clean_first)) return;
      if (!copies_) make_copies();
      add_block(block, sums, offset, true);
      sum_.check(block, sums[0] + offset, true);
    });
  }

 private:
  void make_copies() {
    copies_ =
        std::make_unique_for_overwrite<std::byte[]>((kBlockBytes + wide_bytes_) * inputs_.size());
  }
  void add_block(const Segment& block, std::span<std::byte* const> sums, std::size_t offset,
                 bool clean) {
    std::byte* place = copies_.get();
    for (std::size_t r = 0; r < inputs_.size(); ++r) {
      inputs_[r] = sum_.values(r, block, clean, place);
      if (!copies_) continue;
      std::byte* const wide = place + kBlockBytes;
      place = wide + wide_bytes_;
      if (wide_bytes_ == 0) continue;
      widen(sum_.dtype, inputs_[r], reinterpret_cast<float*>(wide), block.count());
      inputs_[r] = wide;
    }
    for (std::size_t n = 0; n < sums.size(); ++n) {
      const CanonicalNode& node = sum_.nodes[n];
      const auto members = std::span<const std::byte* const>(inputs_).subspan(
          static_cast<std::size_t>(node.first), static_cast<std::size_t>(node.count));
      reduce_along_tree(ReduceOp::kSum, sum_.sum_dtype, members, sums[n] + offset, block.count());
    }
  }

  const SegmentedSum& sum_;
  std::size_t wide_bytes_ = 0;            // of a block as float32, if it is added so
  std::vector<const std::byte*> inputs_;  // per replica
  std::unique_ptr<std::byte[]> copies_;   // per replica, a block in both types
};

}  // namespace

void CrossDeviceOps::sum_segments(const SegmentedSum& sum, const CommunicationOptions& options) {
  TUTTI_CHECK(sum.nodes.size() == 1 && sum.dtype == sum.sum_dtype,
              "operations other than canonical add all replicas' values, in their own type");
  if (sum.segments.empty()) return;
  const std::size_t size = size_of(sum.dtype), count = sum.end - sum.begin;
  std::vector<BufferRef> memory;
  std::vector<ReplicaBuffer> flat;
  for (std::size_t r = 0; r < sum.replicas.size(); ++r) {
    memory.push_back(BufferRef::allocate(count * size));
    std::byte* const buffer = memory.back()->data();
    flat.push_back({buffer, count, sum.dtype, sum.replicas[r], nullptr, sum.id, sum.name});
    std::size_t filled = sum.begin;
    for (const Segment& segment : sum.segments) {
      std::memset(buffer + (filled - sum.begin) * size, 0, (segment.begin - filled) * size);
      filled = segment.end;
      for_blocks(sum, segment, [&](const Segment& block) {
        std::byte* const place = buffer + (block.begin - sum.begin) * size;
        const std::byte* const values = sum.values(r, block, true, place);
        if (values != place) std::memcpy(place, values, block.count() * size);
      });
    }
    std::memset(buffer + (filled - sum.begin) * size, 0, (sum.end - filled) * size);
  }
  all_reduce_in_place(ReduceOp::kSum, flat, options);
  for (std::size_t i = 0; i < sum.segments.size(); ++i) {
    const Segment& segment = sum.segments[i];
    std::byte* const values = flat[0].data + (segment.begin - sum.begin) * size;
    std::memcpy(sum.sums[i], values, segment.count() * size);
    if (sum.check) sum.check(segment, sum.sums[i], true);
  }
}

void Canonical::sum_segments(const SegmentedSum& sum, const CommunicationOptions&) {
  TreeAdder adder(sum);
  for (std::size_t i = 0; i < sum.segments.size(); ++i) {
    adder.add(i);
    note_reduced(sum.segments[i].count() * size_of(sum.dtype) * sum.replicas.size());
  }
}

}  // namespace tutti
