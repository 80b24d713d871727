// Which gradients travel together: buckets of variables, and the slices in which they are reduced.
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

/// Buckets of variables in reverse order, since gradients of the last used variables come first. A
/// bucket holds one dtype, and either variables that are cut over the replicas or others; the first
/// is small, so that reducing starts early. The same in all replicas.
struct BucketPlan {
  struct Item {
    std::size_t variable = 0;  // index in the list
    std::size_t first = 0;     // element of the bucket, at a multiple of 64 bytes
    std::size_t count = 0;
  };
  struct Bucket {
    DType dtype = DType::kFloat32;
    std::size_t count = 0;  // elements, padding included
    std::vector<Item> items;
    std::uint64_t id = 0;   // ReplicaBuffer::id: of the variables
    std::string name = {};  // in errors of reductions: "gradients 1/3 kernel"
  };
  struct Place {
    std::size_t bucket = 0;
    std::size_t item = 0;
  };

  std::vector<std::uint64_t> variable_ids;
  std::vector<Bucket> buckets;
  std::vector<Place> places;  // per variable

  /// With other workers: numbers that travel behind the elements of a bucket, these for each item,
  /// and in one bucket the bytes of a digest, and a number per worker: what it has waited.
  static constexpr std::size_t kCountersPerItem = 2;
  static constexpr std::size_t kBucketOfWorkers = 0;
  static constexpr std::size_t kDigestBytes = 8;
  std::size_t num_counters(std::size_t bucket, int num_workers) const {
    const std::size_t of_workers =
        bucket == kBucketOfWorkers ? kDigestBytes + static_cast<std::size_t>(num_workers) : 0;
    return kCountersPerItem * buckets[bucket].items.size() + of_workers;
  }

  /// Sizes of 0: 4 MiB, and for the first bucket of each dtype as much, but 1 MiB at most.
  static BucketPlan make(std::span<const Variable> variables, std::int64_t bytes_per_pack,
                         std::int64_t first_bytes_per_pack = 0);
};

std::vector<std::uint64_t> ids_of(std::span<const Variable> variables);

struct SliceRange {
  std::size_t begin = 0;
  std::size_t end = 0;
};
/// The ranges, cut at multiples of 64 bytes, into which `num_replicas` replicas split `count`
/// elements. At least 16 KiB each, so fewer for small buckets.
std::vector<SliceRange> cut_slices(std::size_t count, std::size_t element_size, int num_replicas);

class HostSums;
class Residuals;

struct PlanInUse {
  std::shared_ptr<const BucketPlan> plan;
  std::shared_ptr<Residuals> residuals;  // nullptr: gradients are not compressed
  std::shared_ptr<HostSums> host_sums;   // where sums of GPUs' gradients go to other workers
};

/// The plans in use, newest first: one per optimizer, 16 at most. Not synchronised, but for
/// first_warning().
class BucketPlans {
 public:
  /// `num_senders`: the replicas here that send their gradients to others; 0: none is compressed.
  PlanInUse& find_or_make(std::span<const Variable> variables, const CommunicationOptions& options,
                          std::size_t num_senders);
  /// After a step that failed, or another state was restored: residuals are of no step then.
  void clear() { plans_.clear(); }
  /// Whether it was not asked before.
  bool first_warning() { return !warned_.exchange(true); }

 private:
  std::vector<PlanInUse> plans_;
  std::atomic<bool> warned_{false};
};

}  // namespace tutti::internal
