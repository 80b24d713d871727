// Sums over all replicas of several ranks, in one collective or node by node along the canonical
// tree.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/communicator/partial_sums.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "core/call_site.h"
#include "cross_device_ops/buffer_call.h"
#include "tensor/half_conversion.h"
#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

Elements bytes_of(std::byte* data, std::size_t size) { return {data, size, DType::kUInt8}; }

void copy_bytes(const std::byte* from, std::byte* to, std::size_t size) {
  if (size > 0) std::memcpy(to, from, size);
}

}  // namespace

PartialSums::PartialSums(Communicator& communicator, std::span<const std::int32_t> counts,
                         bool is_canonical)
    : communicator_(communicator),
      size_(counts.size()),
      rank_(static_cast<std::size_t>(communicator.rank())),
      allocator_(communicator.allocator()),
      first_of_{0},
      nodes_{{0, counts[rank_]}} {
  for (const std::int32_t count : counts) first_of_.push_back(first_of_.back() + count);
  for (std::size_t r = 0; r < size_; ++r) {
    any_single_ = any_single_ || std::ranges::count(nodes_of(r), 1, &CanonicalNode::count) > 0;
  }
  if (!is_canonical) return;
  nodes_ = nodes_of(rank_);
  const auto is_like_first = [&](std::int32_t count) { return count == counts.front(); };
  by_nodes_ = size_ > 1 && (!std::ranges::all_of(counts, is_like_first) ||
                            !std::has_single_bit(static_cast<unsigned>(counts.front())));
}

std::vector<CanonicalNode> PartialSums::nodes_of(std::size_t rank) const {
  const int first = first_of_[rank];
  std::vector<CanonicalNode> nodes =
      canonical_nodes(first, first_of_[rank + 1] - first, first_of_.back());
  for (CanonicalNode& node : nodes) node.first -= first;
  return nodes;
}

DType PartialSums::sum_dtype(DType dtype) {
  return dtype == DType::kBFloat16 || dtype == DType::kFloat16 ? DType::kFloat32 : dtype;
}

MutableTensor PartialSums::make_buffer(std::size_t count, DType dtype) {
  const Shape shape{static_cast<std::int64_t>(count)};
  if (!allocator_) return {shape, dtype, Device{}};
  try {
    return {shape, dtype, *allocator_};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kResourceExhausted) throw;
    // The result is correct, but each sum is then copied through shared memory.
    log_warning_once(concat("gradient buffers are outside shared memory, which makes sums slower: ",
                            error.message()));
    return {shape, dtype, Device{}};
  }
}

BufferRef PartialSums::allocate(std::size_t bytes) {
  return make_buffer(bytes, DType::kUInt8).buffer();
}

CollectiveHandle PartialSums::start_all_reduce(std::span<const Elements> partials,
                                               const CallOptions& options,
                                               std::optional<DType> wire) {
  if (!reduces_by_nodes(wire)) {
    return communicator_.start_all_reduce(ReduceOp::kSum, partials[0], options,
                                          CallSite::current());
  }
  all_reduce_nodes(partials, options.name, wire);
  return {};
}

CollectiveHandle PartialSums::start_reduce_scatter(std::span<const Elements> partials,
                                                   const Elements& own,
                                                   std::span<const std::size_t> counts,
                                                   const CallOptions& options,
                                                   std::optional<DType> wire) {
  if (!reduces_by_nodes(wire)) {
    return communicator_.start_reduce_scatter(ReduceOp::kSum, partials[0], own, counts, options,
                                              CallSite::current());
  }
  reduce_scatter_nodes(partials, own.data, counts, options.name, wire);
  return {};
}

bool PartialSums::reduces_by_nodes(std::optional<DType> wire) const {
  return by_nodes_ || (wire && any_single_ && size_ > 1);
}

void PartialSums::all_reduce_nodes(std::span<const Elements> partials, std::string_view name,
                                   std::optional<DType> wire) {
  const std::size_t count = partials[0].count;
  const DType dtype = partials[0].dtype;
  const auto begin_of = [&](std::size_t w) { return count * w / size_; };
  std::vector<std::size_t> slices;
  for (std::size_t w = 0; w < size_; ++w) slices.push_back(begin_of(w + 1) - begin_of(w));
  std::byte* const result = partials[0].data + begin_of(rank_) * size_of(dtype);
  reduce_scatter_nodes(partials, result, slices, name, wire);
  const std::size_t own_bytes = slices[rank_] * size_of(dtype);
  const BufferRef own_slice = allocate(own_bytes);
  copy_bytes(result, own_slice->data(), own_bytes);
  communicator_.all_gather({own_slice->data(), slices[rank_], dtype}, partials[0], slices,
                           {.name = name}, CallSite::current());
}

void PartialSums::reduce_scatter_nodes(std::span<const Elements> partials, std::byte* result,
                                       std::span<const std::size_t> counts, std::string_view name,
                                       std::optional<DType> wire) {
  const std::size_t count = partials[0].count;
  const DType dtype = partials[0].dtype;
  const std::size_t element = size_of(dtype);
  const std::vector<std::size_t> begins = cuts_of(counts);
  const auto bytes_of_each = [&](const CanonicalNode& node) {
    return wire && node.count == 1 ? size_of(*wire) : element;
  };

  // Contains, for each rank w, slice w of each partial sum.
  const BufferRef sent = allocate(count * partials.size() * element);
  std::vector<std::size_t> send_bytes, receive_bytes;
  std::byte* place = sent->data();
  for (std::size_t w = 0; w < size_; ++w) {
    const std::byte* const begin = place;
    for (std::size_t p = 0; p < partials.size(); ++p) {
      const std::byte* const slice = partials[p].data + begins[w] * element;
      const std::size_t each = bytes_of_each(nodes_[p]);
      if (each == element) {
        copy_bytes(slice, place, counts[w] * element);
      } else {
        narrow(reinterpret_cast<const float*>(slice), *wire, place, counts[w]);
      }
      place += counts[w] * each;
    }
    send_bytes.push_back(static_cast<std::size_t>(place - begin));
  }
  std::vector<CanonicalNode> nodes;
  for (std::size_t w = 0; w < size_; ++w) {
    receive_bytes.push_back(0);
    for (CanonicalNode node : nodes_of(w)) {
      receive_bytes.back() += counts[rank_] * bytes_of_each(node);
      node.first += first_of_[w];
      nodes.push_back(node);
    }
  }
  const std::size_t received_bytes =
      std::accumulate(receive_bytes.begin(), receive_bytes.end(), std::size_t{0});
  const BufferRef received = allocate(received_bytes);
  communicator_.all_to_all(bytes_of(sent->data(), static_cast<std::size_t>(place - sent->data())),
                           bytes_of(received->data(), received_bytes), send_bytes, receive_bytes,
                           {.name = name}, CallSite::current());
  std::vector<const std::byte*> inputs;
  std::vector<BufferRef> widened;
  const std::byte* from = received->data();
  for (const CanonicalNode& node : nodes) {
    const std::size_t each = bytes_of_each(node);
    if (each == element) {
      inputs.push_back(from);
    } else {
      widened.push_back(BufferRef::allocate(counts[rank_] * element));
      widen(*wire, from, reinterpret_cast<float*>(widened.back()->data()), counts[rank_]);
      inputs.push_back(widened.back()->data());
    }
    from += counts[rank_] * each;
  }
  combine_nodes(ReduceOp::kSum, dtype, nodes, inputs, result, counts[rank_]);
}

}  // namespace tutti::internal
