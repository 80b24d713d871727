// A source that gives some of the elements of another, one of every `count`.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "tutti/data/forwarding_source.h"

namespace tutti::internal {

/// Elements index, index + count, ...; Iterator(below, count, index) hands them out.
template <class Iterator>
class ShardSource : public ForwardingSource {
 public:
  ShardSource(std::shared_ptr<const DatasetSource> below, std::int64_t count, std::int64_t index)
      : ForwardingSource(std::move(below)), count_(count), index_(index) {}

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    return std::make_unique<Iterator>(below().iterate(epoch), count_, index_);
  }
  SourcePtr over(SourcePtr below) const override {
    return std::make_shared<ShardSource>(std::move(below), count_, index_);
  }

  std::optional<std::int64_t> cardinality() const override {
    const std::optional<std::int64_t> length = below().cardinality();
    if (!length || *length == kInfinite) return length;
    return *length > index_ ? (*length - index_ - 1) / count_ + 1 : 0;
  }

 private:
  std::int64_t count_;
  std::int64_t index_;
};

}  // namespace tutti::internal
