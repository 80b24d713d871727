// Every n-th element.
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "tutti/data/shard_source.h"

namespace tutti {
namespace {

class ShardIterator : public internal::ForwardingIterator {
 public:
  ShardIterator(std::unique_ptr<ElementIterator> below, std::int64_t count, std::int64_t index)
      : ForwardingIterator(std::move(below)), count_(count), foreign_(index) {}

  std::optional<Element> next() override {
    below().skip(foreign_);
    foreign_ = count_ - 1;
    return below().next();
  }

  void skip(std::int64_t count) override {
    if (count < 1) return;
    const std::int64_t later = internal::saturating_product(count - 1, count_);
    below().skip(internal::saturating_sum(foreign_ + 1, later));
    foreign_ = count_ - 1;
  }

 private:
  std::int64_t count_;
  std::int64_t foreign_;  // elements of other shards before our next one
};

}  // namespace

Dataset Dataset::shard(std::int64_t count, std::int64_t index) const {
  if (count < 1 || index < 0 || index >= count) {
    fail(ErrorCode::kInvalidArgument, "Dataset::shard: expected 0 <= index < count, got index ",
         index, ", count ", count);
  }
  return Dataset(std::make_shared<internal::ShardSource<ShardIterator>>(source_, count, index));
}

}  // namespace tutti
