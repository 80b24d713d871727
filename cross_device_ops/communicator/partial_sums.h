// Sums over all replicas of several ranks, each of which first sums its own replicas.
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

/// Sums over replicas that are numbered across all ranks of a communicator in rank order. Each rank
/// first adds up its own replicas' values, which gives one *partial sum*, or several if the
/// canonical order requires it. As thread-safe as Communicator.
class PartialSums {
 public:
  /// `counts`: number of replicas of each rank. The communicator must outlive this object.
  /// `is_canonical`: if true, sums are added in canonical order; if false, each rank has one
  /// partial sum.
  PartialSums(Communicator& communicator, std::span<const std::int32_t> counts, bool is_canonical);

  /// Returns the nodes that this rank sums itself, one buffer each. CanonicalNode::first counts
  /// from this rank's first replica.
  std::span<const CanonicalNode> nodes() const { return nodes_; }
  /// Returns the type used for partial sums of `dtype`: float32 for 16-bit numbers, so that results
  /// are rounded only once.
  static DType sum_dtype(DType dtype);
  /// Returns a buffer for a partial sum; if possible, in memory that collectives can access without
  /// a copy.
  MutableTensor make_buffer(std::size_t count, DType dtype);

  /// Starts the sum of all ranks' partial sums; `partials[i]` is the partial sum of nodes()[i].
  /// After the handle's wait(), partials[0] holds the sum over all replicas. All partials must have
  /// the same length and sum_dtype(), and stay valid until that wait() returns. Set only the name
  /// and the id in `options`. `wire`: a 16-bit type that represents all replicas' float32 values
  /// exactly; partial sums of a single replica are sent in this type, which does not change the
  /// result.
  CollectiveHandle start_all_reduce(std::span<const Elements> partials, const CallOptions& options,
                                    std::optional<DType> wire = std::nullopt);
  /// Same as start_all_reduce(), but rank r receives only counts[r] elements, of type sum_dtype(),
  /// in `own`. Each of `partials` holds the elements of rank 0, then those of rank 1, and so on.
  /// Transfers half as many bytes as start_all_reduce().
  CollectiveHandle start_reduce_scatter(std::span<const Elements> partials, const Elements& own,
                                        std::span<const std::size_t> counts,
                                        const CallOptions& options,
                                        std::optional<DType> wire = std::nullopt);

 private:
  std::vector<CanonicalNode> nodes_of(std::size_t rank) const;
  /// Returns true if the result of one collective over the ranks' partial sums might not be
  /// bit-identical to the sum along the tree.
  bool reduces_by_nodes(std::optional<DType> wire) const;
  void all_reduce_nodes(std::span<const Elements> partials, std::string_view name,
                        std::optional<DType> wire);
  void reduce_scatter_nodes(std::span<const Elements> partials, std::byte* own,
                            std::span<const std::size_t> counts, std::string_view name,
                            std::optional<DType> wire);
  BufferRef allocate(std::size_t bytes);

  Communicator& communicator_;
  const std::size_t size_;
  const std::size_t rank_;
  const std::shared_ptr<BufferAllocator> allocator_;  // nullptr if all memory is equally fast
  std::vector<int> first_of_;                         // first replica of each rank; then the total
  std::vector<CanonicalNode> nodes_;
  bool by_nodes_ = false;    // ranks' replica counts differ or are not powers of two
  bool any_single_ = false;  // true if a rank has a partial sum of only one replica
};

}  // namespace tutti::internal
