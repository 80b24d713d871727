// Functions applied to elements: execution on several threads with ordered results, and keyed
// random numbers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "tutti/core/random.h"
#include "tutti/data/dataset.h"

namespace tutti::internal {

/// Function of an element and of `number`: the count of elements, yielded or skipped, that precede
/// the element in the full pass over all shards.
using NumberedFunction = std::function<Element(const Element&, std::uint64_t number)>;

using MakeFunction = std::function<NumberedFunction(std::uint64_t epoch)>;

/// Number of rows in a function's result. kKept: equal to the number of rows of its argument, so
/// the batch size remains known.
enum class Rows { kKept, kUnknown };

/// Returns `dataset` mapped by the function that `make` returns for the epoch. If
/// num_parallel_calls is 1, the function runs on the thread that calls next(). Throws
/// kInvalidArgument, naming `who`, if num_parallel_calls < 1.
Dataset map_numbered(const Dataset& dataset, MakeFunction make, int num_parallel_calls,
                     const char* who, Rows rows = Rows::kUnknown);

/// Returns true if `source` was created by Dataset::prefetch(), which only reads elements in
/// advance.
bool only_reads_ahead(const DatasetSource& source);

/// Random contexts for the elements of one pass. A value type.
class PassRandom {
 public:
  PassRandom(const RandomContext& before, std::uint64_t stride)
      : before_(before), stride_(stride) {}

  /// Returns the context in which a function runs for element `n` of this iterator; its `step` is
  /// the number of the element in the full pass, unique across the shards of the pass.
  RandomContext at(std::uint64_t n) const {
    RandomContext context = before_;
    context.step += n * stride_;
    return context;
  }

 private:
  RandomContext before_;
  std::uint64_t stride_;
};

/// Keys for the random numbers that a dataset's function draws without an explicit key
/// (next_random_key(), layers in training mode). They consist of the global seed, the number of the
/// dataset in this program, the epoch and the number of the element in the pass. They do not depend
/// on the calling thread or on earlier draws. Created together with the dataset. A value type.
class FunctionRandom {
 public:
  FunctionRandom() {
    const RandomContext& here = current_random_context();
    // A separate call site, so that creating a dataset does not change the program's other random
    // numbers.
    constexpr std::uint64_t kCallSite = ~std::uint64_t{1};
    seed_ =
        bits({here.seed, kAugmentPurpose, here.step, here.replica, next_call_ordinal(kCallSite)});
    // Element numbers begin at a different value in each dataset that interleave() creates.
    if (here.replica == kInDataset) first_ = bits({here.step, kAugmentPurpose});
  }

  PassRandom of_pass(std::uint64_t epoch, const PassShard& shard = {}) const {
    const std::uint64_t seed = bits({seed_, kAugmentPurpose, epoch});
    return PassRandom({seed, first_ + static_cast<std::uint64_t>(shard.index), kInDataset},
                      static_cast<std::uint64_t>(shard.count));
  }

 private:
  /// Replica number that no strategy uses; marks keys drawn in a dataset.
  static constexpr std::uint32_t kInDataset = UINT32_MAX;
  static std::uint64_t bits(const RandomKey& key) { return RandomStream(key).bits64(0); }

  std::uint64_t seed_ = 0;
  std::uint64_t first_ = 0;  // number of the first element
};

}  // namespace tutti::internal
