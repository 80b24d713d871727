// Sum of gradients and the optimizer's step in one pass over memory.
// SPDX-License-Identifier: Apache-2.0
//
// Streams of memory for two ranks: both gradients and one copy of the weights are read, both copies
// of the weights written: 5, where all-reduce (4) and two updates (3 each) have 10. A store that
// goes past the caches does not read its line before.
#include "tutti/cross_device_ops/shared/update_pass.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "tutti/cross_device_ops/shared/reduce_to_all.h"
#include "tutti/cross_device_ops/shared/sgd_pass.h"
#include "tutti/tensor/cpu/copy_past_caches.h"

namespace tutti::internal {
namespace {

// In caches a long block costs least. Beyond them a short one keeps all streams of memory busy at
// once, unless the rule has slots, and so more to set up for each.
constexpr std::size_t kBlockBytes = 8192;
constexpr std::size_t kBlockBytesPastCaches = 512;

void divide(DType dtype, std::byte* values, std::size_t count, std::size_t divisor) {
  visit_arithmetic_floating(dtype, "all_reduce_and_update", [&]<class T>() {
    T* const at = reinterpret_cast<T*>(values);
    const T by = static_cast<T>(divisor);
    for (std::size_t i = 0; i < count; ++i) at[i] /= by;
  });
}

class Pass {
 public:
  Pass(const UpdateRule& rule, const UpdateScalars& scalars, bool mean, bool past_caches,
       const UpdateRange& range)
      : rule_(rule),
        scalars_(scalars),
        mean_(mean),
        past_caches_(past_caches),
        range_(range),
        element_(size_of(range.dtype)),
        starts_(range.gradients.size()),
        slots_(range.slots.size()),
        updated_{range.weights[range.reader]} {
    for (const std::vector<std::byte*>& slot : range.slots) updated_.push_back(slot[range.reader]);
    asked_.resize(updated_.size());
  }

  void run() {
    const bool is_short = past_caches_ && slots_.empty();
    const std::size_t most = (is_short ? kBlockBytesPastCaches : kBlockBytes) / element_;
    for (std::size_t first = 0; first < range_.count; first += most) {
      step(first * element_, std::min(most, range_.count - first));
    }
    if (past_caches_) finish_copies();
  }

 private:
  void step(std::size_t offset, std::size_t count) {
    for (std::size_t r = 0; r < starts_.size(); ++r) starts_[r] = range_.gradients[r] + offset;
    if (past_caches_) {
      for (std::size_t s = 0; s < asked_.size(); ++s) asked_[s] = updated_[s] + offset;
      sum_along_tree(range_.dtype, starts_, sum_.data(), count, asked_, kAheadBytes);
    } else {
      sum_along_tree(range_.dtype, starts_, sum_.data(), count);
    }
    if (mean_) divide(range_.dtype, sum_.data(), count, starts_.size());
    for (std::size_t s = 0; s < slots_.size(); ++s) {
      slots_[s] = range_.slots[s][range_.reader] + offset;
    }
    std::byte* const weights = range_.weights[range_.reader] + offset;
    rule_.apply({range_.dtype, count, weights, slots_, sum_.data(), scalars_});
    tell_others(range_.weights, offset, count * element_);
    for (const std::vector<std::byte*>& slot : range_.slots) {
      tell_others(slot, offset, count * element_);
    }
  }

  void tell_others(std::span<std::byte* const> copies, std::size_t offset, std::size_t bytes) {
    const std::byte* const from = copies[range_.reader] + offset;
    for (std::size_t r = 0; r < copies.size(); ++r) {
      if (r == range_.reader || copies[r] == copies[range_.reader]) continue;
      if (past_caches_) {
        copy_past_caches(copies[r] + offset, from, bytes);
      } else {
        std::memcpy(copies[r] + offset, from, bytes);
      }
    }
  }

  const UpdateRule& rule_;
  const UpdateScalars& scalars_;
  const bool mean_;
  const bool past_caches_;
  const UpdateRange& range_;
  const std::size_t element_;
  std::vector<const std::byte*> starts_;
  std::vector<void*> slots_;
  std::vector<const std::byte*> updated_;  // weights, then slots: of the rank that reads its own
  std::vector<const std::byte*> asked_;
  alignas(64) std::array<std::byte, kBlockBytes> sum_;
};

}  // namespace

void sum_and_update(const UpdateRule& rule, const UpdateScalars& scalars, bool mean,
                    bool past_caches, const UpdateRange& range) {
  if (past_caches && sum_and_sgd_past_caches(rule, scalars, mean, range)) return;
  Pass(rule, scalars, mean, past_caches, range).run();
}

}  // namespace tutti::internal
