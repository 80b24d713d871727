// Which gradients travel together: buckets of variables, and the slices in which they are reduced.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tutti/autograd/variable.h"

namespace tutti::internal {

/// Buckets of variables in reverse order, since gradients of the last used variables come first. A
/// bucket holds one dtype; the first is small, so that reducing starts early. Depends on the
/// variables and the pack size alone: the same in all replicas.
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
  };
  struct Place {
    std::size_t bucket = 0;
    std::size_t item = 0;
  };

  std::vector<std::uint64_t> variable_ids;
  std::vector<Bucket> buckets;
  std::vector<Place> places;  // per variable

  /// `bytes_per_pack` 0: 4 MiB.
  static BucketPlan make(std::span<const Variable> variables, std::int64_t bytes_per_pack);
};

std::vector<std::uint64_t> ids_of(std::span<const Variable> variables);

struct SliceRange {
  std::size_t begin = 0;
  std::size_t end = 0;
};
/// The ranges, cut at multiples of 64 bytes, into which `num_replicas` replicas split `count`
/// elements. At least 16 KiB each, so fewer for small buckets.
std::vector<SliceRange> cut_slices(std::size_t count, std::size_t element_size, int num_replicas);

/// The plans in use, newest first: one per optimizer. Not synchronised.
class BucketPlans {
 public:
  std::shared_ptr<const BucketPlan> find_or_make(std::span<const Variable> variables,
                                                 std::int64_t bytes_per_pack);

 private:
  std::vector<std::shared_ptr<const BucketPlan>> plans_;
};

}  // namespace tutti::internal
