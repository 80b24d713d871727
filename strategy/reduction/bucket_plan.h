// Buckets of variables whose gradients are reduced together, slice by slice.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/autograd/variable.h"
#include "tutti/cross_device_ops/communication_options.h"

namespace tutti::internal {

/// Buckets of variables in reverse order, because the gradients of the variables used last are
/// ready first. A bucket holds variables of one dtype, which are either all sharded over the
/// replicas or all unsharded. The first bucket is small, so that reductions start early. All
/// replicas have the same plan.
struct BucketPlan {
  struct Item {
    std::size_t variable = 0;  // index in the variable list
    std::size_t first = 0;     // offset in the bucket, at a multiple of 64 bytes
    std::size_t count = 0;
  };
  struct Bucket {
    DType dtype = DType::kFloat32;
    std::size_t count = 0;  // elements, padding included
    std::vector<Item> items;
    std::uint64_t id = 0;   // hash of the variables, see ReplicaBuffer::id
    std::string name = {};  // name in reduction errors: "gradients 1/3 kernel"
  };
  struct Place {
    std::size_t bucket = 0;
    std::size_t item = 0;
  };

  std::vector<std::uint64_t> variable_ids;
  std::vector<Bucket> buckets;
  std::vector<Place> places;  // per variable

  /// Number of counters per item. With several workers, counters are sent after the elements of a
  /// bucket; in one bucket, they are followed by the bytes of a digest and by the waiting time of
  /// each worker.
  static constexpr std::size_t kCountersPerItem = 2;
  static constexpr std::size_t kBucketOfWorkers = 0;
  static constexpr std::size_t kDigestBytes = 8;
  std::size_t num_counters(std::size_t bucket, int num_workers) const {
    const std::size_t of_workers =
        bucket == kBucketOfWorkers ? kDigestBytes + static_cast<std::size_t>(num_workers) : 0;
    return kCountersPerItem * buckets[bucket].items.size() + of_workers;
  }

  /// Creates a plan. If `bytes_per_pack` is 0, buckets have 4 MiB. If `first_bytes_per_pack` is 0,
  /// the first bucket of each dtype has the same size, but at most 1 MiB.
  static BucketPlan make(std::span<const Variable> variables, std::int64_t bytes_per_pack,
                         std::int64_t first_bytes_per_pack = 0);
};

std::vector<std::uint64_t> ids_of(std::span<const Variable> variables);

struct SliceRange {
  std::size_t begin = 0;
  std::size_t end = 0;
};
/// Returns the ranges, cut at multiples of 64 bytes, into which `num_replicas` replicas split
/// `count` elements. Ranges have about 16 KiB or more, so small buckets have fewer ranges.
std::vector<SliceRange> cut_slices(std::size_t count, std::size_t element_size, int num_replicas);

class HostSums;
class Residuals;

struct PlanInUse {
  std::shared_ptr<const BucketPlan> plan;
  std::shared_ptr<Residuals> residuals;  // null if gradients are uncompressed
  std::shared_ptr<HostSums> host_sums;   // host memory for sums of GPU gradients across workers
};

/// Plans in use, one per list of variables, most recently used first, at most 16. Not thread-safe,
/// except first_warning().
class BucketPlans {
 public:
  /// `num_senders`: number of local replicas that send their gradients; 0: no compression.
  PlanInUse& find_or_make(std::span<const Variable> variables, const CommunicationOptions& options,
                          std::size_t num_senders);
  /// Called after a failed step or after restoring state, because the residuals are then obsolete.
  void clear() { plans_.clear(); }
  /// Returns true on the first call only.
  bool first_warning() { return !warned_.exchange(true); }

 private:
  std::vector<PlanInUse> plans_;
  std::atomic<bool> warned_{false};
};

}  // namespace tutti::internal
