// Sums over all replicas of several ranks, each of which has added up its own.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "tutti/cross_device_ops/canonical_tree.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/tensor/tensor.h"

namespace tutti::internal {

/// Every rank of a communicator has some replicas, numbered over all ranks in rank order. Before a
/// sum each rank adds up its replicas: to one *partial sum*, or to several where the canonical
/// order needs more. Threads: as Communicator.
class PartialSums {
 public:
  /// `counts`: replicas of each rank. The communicator outlives this object. `is_canonical`: sums
  /// have the canonical order; otherwise each rank has one partial sum.
  PartialSums(Communicator& communicator, std::span<const std::int32_t> counts, bool is_canonical);

  /// Nodes that this rank adds up itself, one buffer each. CanonicalNode::first: 0 is this rank's
  /// first replica.
  std::span<const CanonicalNode> nodes() const { return nodes_; }
  /// The type in which partial sums of `dtype` are made: 16-bit numbers as float32, so that they
  /// are rounded once.
  static DType sum_dtype(DType dtype);
  /// For a partial sum: in memory that the calls below reach without a copy, where there is such.
  MutableTensor make_buffer(std::size_t count, DType dtype);

  /// Begins to add up all ranks' partial sums: `partials[i]` holds that of nodes()[i]. The sum over
  /// all replicas is in partials[0] when the handle's wait() returned. All partials have one length
  /// and one sum_dtype(), and stay where they are until then. Of `options` name and id count.
  /// `wire`: a 16-bit type that holds all that replicas give (float32) exactly: partial sums of one
  /// replica travel in it. The same bits.
  CollectiveHandle start_all_reduce(std::span<const Elements> partials, const CallOptions& options,
                                    std::optional<DType> wire = std::nullopt);
  /// Same as start_all_reduce(), but rank r gets counts[r] elements alone, in `own`, of
  /// sum_dtype(). Each of `partials` has those of rank 0, then those of rank 1, and so on. Half of
  /// the bytes of a sum that all get.
  CollectiveHandle start_reduce_scatter(std::span<const Elements> partials, const Elements& own,
                                        std::span<const std::size_t> counts,
                                        const CallOptions& options,
                                        std::optional<DType> wire = std::nullopt);

 private:
  std::vector<CanonicalNode> nodes_of(std::size_t rank) const;
  /// Returns true if one collective over the ranks' own sums would not give the bits of the tree.
  bool goes_by_nodes(std::optional<DType> wire) const;
  void all_reduce_nodes(std::span<const Elements> partials, std::string_view name,
                        std::optional<DType> wire);
  void reduce_scatter_nodes(std::span<const Elements> partials, std::byte* own,
                            std::span<const std::size_t> counts, std::string_view name,
                            std::optional<DType> wire);
  BufferRef allocate(std::size_t bytes);

  Communicator& communicator_;
  const std::size_t size_;
  const std::size_t rank_;
  const std::shared_ptr<BufferAllocator> allocator_;  // nullptr: all memory is alike
  std::vector<int> first_of_;                         // by rank, and one more: all replicas
  std::vector<CanonicalNode> nodes_;
  bool by_nodes_ = false;    // ranks' replicas are no whole halves of the canonical tree
  bool any_single_ = false;  // some rank has a partial sum of one replica
};

}  // namespace tutti::internal
