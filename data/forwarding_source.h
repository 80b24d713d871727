// Base classes of decorators, which forward all functions that they do not override.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "tutti/core/error.h"
#include "tutti/data/dataset.h"

namespace tutti::internal {

/// Source that wraps another source and has the same cardinality, shard and batch properties.
class ForwardingSource : public DatasetSource {
 public:
  explicit ForwardingSource(SourcePtr below) : below_(std::move(below)) {}

  /// Returns the same decorator over another source.
  virtual SourcePtr over(SourcePtr below) const = 0;

  std::vector<SourcePtr> inputs() const final { return {below_}; }
  SourcePtr with_inputs(std::vector<SourcePtr> inputs) const final {
    return over(std::move(inputs.at(0)));
  }

  std::optional<std::int64_t> cardinality() const override { return below_->cardinality(); }
  std::optional<std::int64_t> batch_size() const override { return below_->batch_size(); }
  std::optional<int> batch_depth() const override { return below_->batch_depth(); }
  bool may_end_in_partial_batch() const override { return below_->may_end_in_partial_batch(); }
  PassShard pass_shard() const override { return below_->pass_shard(); }

 protected:
  const DatasetSource& below() const { return *below_; }
  const SourcePtr& shared_below() const { return below_; }

 private:
  SourcePtr below_;
};

/// Source that wraps another source and takes one argument.
template <class Self, class Argument>
class SourceWith : public ForwardingSource {
 public:
  SourceWith(SourcePtr below, Argument argument)
      : ForwardingSource(std::move(below)), argument_(std::move(argument)) {}

  SourcePtr over(SourcePtr below) const override {
    return std::make_shared<Self>(std::move(below), argument_);
  }

 protected:
  const Argument& argument() const { return argument_; }

 private:
  const Argument argument_;
};

/// Decorator whose iterate() constructs an Iterator from an iterator over the input and argument().
/// Optional further parameters are the epoch, or the epoch and the input's pass_shard().
template <class Self, class Iterator, class Argument>
class Decorator : public SourceWith<Self, Argument> {
 public:
  using SourceWith<Self, Argument>::SourceWith;

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    const DatasetSource& source = this->below();
    const Argument& argument = this->argument();
    if constexpr (requires { Iterator(source.iterate(epoch), argument, epoch, PassShard()); }) {
      return std::make_unique<Iterator>(source.iterate(epoch), argument, epoch,
                                        source.pass_shard());
    } else if constexpr (requires { Iterator(source.iterate(epoch), argument, epoch); }) {
      return std::make_unique<Iterator>(source.iterate(epoch), argument, epoch);
    } else {
      return std::make_unique<Iterator>(source.iterate(epoch), argument);
    }
  }
};

/// Iterator that forwards next() and skip() to another iterator.
class ForwardingIterator : public ElementIterator {
 public:
  explicit ForwardingIterator(std::unique_ptr<ElementIterator> below) : below_(std::move(below)) {}
  std::optional<Element> next() override { return below_->next(); }
  void skip(std::int64_t count) override { below_->skip(count); }

 protected:
  ElementIterator& below() { return *below_; }

 private:
  std::unique_ptr<ElementIterator> below_;
};

/// Iterator over elements at(0), at(1), ..., at(length - 1).
class IndexedIterator : public ElementIterator {
 public:
  IndexedIterator(std::int64_t length, std::function<Element(std::int64_t)> at)
      : length_(length), at_(std::move(at)) {}

  std::optional<Element> next() override {
    if (index_ == length_) return std::nullopt;
    Element element = at_(index_);
    ++index_;
    return element;
  }
  void skip(std::int64_t count) override {
    if (count > 0) index_ += std::min(count, length_ - index_);
  }

 private:
  const std::int64_t length_;
  const std::function<Element(std::int64_t)> at_;
  std::int64_t index_ = 0;
};

/// Throws kInvalidArgument naming `who` if `fn` is empty.
template <class Function>
void require_function(const Function& fn, const char* who) {
  if (!fn) fail(ErrorCode::kInvalidArgument, who, ": expected a function, got none");
}

/// Returns a * b, or INT64_MAX on overflow. Requires: a >= 0 and b >= 0.
inline std::int64_t saturating_product(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

/// Returns a + b, or INT64_MAX on overflow. Requires: a >= 0 and b >= 0.
inline std::int64_t saturating_sum(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

}  // namespace tutti::internal
