// The first elements, all but the first, or all of them again and again.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "data/forwarding_source.h"

namespace tutti {

// The first elements, or all but the first.

namespace {

void require_count(std::int64_t count, const char* who) {
  if (count < 0 && count != kInfinite) {
    fail(ErrorCode::kInvalidArgument, who, ": expected a count of at least 0, or kInfinite, got ",
         count);
  }
}

class TakeIterator : public internal::ForwardingIterator {
 public:
  TakeIterator(std::unique_ptr<ElementIterator> below, std::int64_t count)
      : ForwardingIterator(std::move(below)), left_(count) {}

  std::optional<Element> next() override {
    if (left_ == 0) return std::nullopt;
    --left_;
    return below().next();
  }

  void skip(std::int64_t count) override {
    if (count < 1) return;
    const std::int64_t skipped = std::min(count, left_);
    below().skip(skipped);
    left_ -= skipped;
  }

 private:
  std::int64_t left_;
};

class TakeSource : public internal::Decorator<TakeSource, TakeIterator, std::int64_t> {
 public:
  using Decorator::Decorator;

  std::optional<std::int64_t> cardinality() const override {
    const std::optional<std::int64_t> length = below().cardinality();
    if (argument() == 0) return 0;
    if (!length) return std::nullopt;
    return *length == kInfinite ? argument() : std::min(*length, argument());
  }
};

class SkipIterator : public internal::ForwardingIterator {
 public:
  SkipIterator(std::unique_ptr<ElementIterator> below, std::int64_t count)
      : ForwardingIterator(std::move(below)), pending_(count) {}

  std::optional<Element> next() override {
    below().skip(std::exchange(pending_, 0));
    return below().next();
  }

  void skip(std::int64_t count) override {
    if (count > 0) pending_ = internal::saturating_sum(pending_, count);
  }

 private:
  std::int64_t pending_;
};

class SkipSource : public internal::Decorator<SkipSource, SkipIterator, std::int64_t> {
 public:
  using Decorator::Decorator;

  std::optional<std::int64_t> cardinality() const override {
    const std::optional<std::int64_t> length = below().cardinality();
    if (!length || *length == kInfinite) return length;
    return std::max<std::int64_t>(*length - argument(), 0);
  }
};

}  // namespace

Dataset Dataset::take(std::int64_t count) const {
  require_count(count, "Dataset::take");
  if (count == kInfinite) return *this;
  return Dataset(std::make_shared<TakeSource>(source_, count));
}

Dataset Dataset::skip(std::int64_t count) const {
  require_count(count, "Dataset::skip");
  if (count == kInfinite) return take(0);
  return Dataset(std::make_shared<SkipSource>(source_, count));
}

// The same again and again, each pass a new epoch for what is below.

namespace {

class RepeatIterator : public ElementIterator {
 public:
  /// Passes 0, 1, ... of `below` are its epochs first_epoch, first_epoch + 1, ...
  RepeatIterator(std::shared_ptr<const DatasetSource> below, std::int64_t count,
                 std::uint64_t first_epoch)
      : below_(std::move(below)), count_(count), first_epoch_(first_epoch) {}

  std::optional<Element> next() override {
    while (has_pass()) {
      if (!pass_) start_pass();
      std::optional<Element> element = pass_->next();
      if (element) {
        ++taken_;
        return element;
      }
      end_pass();
    }
    return std::nullopt;
  }

  void skip(std::int64_t count) override {
    const std::optional<std::int64_t> length = below_->cardinality();
    if (!length || *length == 0) return ElementIterator::skip(count);
    if (*length != kInfinite && count > *length - taken_) {
      count -= *length - taken_;
      pass_number_ = internal::saturating_sum(pass_number_, count / *length);
      pass_number_ = internal::saturating_sum(pass_number_, 1);
      count %= *length;
      pass_.reset();
      taken_ = 0;
    }
    if (count < 1 || !has_pass()) return;
    if (!pass_) start_pass();
    pass_->skip(count);
    taken_ += count;
  }

 private:
  bool has_pass() const { return count_ == kInfinite || pass_number_ < count_; }

  void start_pass() {
    pass_ = below_->iterate(first_epoch_ + static_cast<std::uint64_t>(pass_number_));
    taken_ = 0;
  }

  void end_pass() {
    const bool was_empty = taken_ == 0;
    pass_.reset();
    ++pass_number_;
    // For ever nothing: it would never end.
    if (was_empty && count_ == kInfinite) count_ = 0;
  }

  std::shared_ptr<const DatasetSource> below_;
  std::int64_t count_;
  std::uint64_t first_epoch_;
  std::int64_t pass_number_ = 0;
  std::int64_t taken_ = 0;  // elements handed out or left out in this pass
  std::unique_ptr<ElementIterator> pass_;
};

class RepeatSource : public internal::ForwardingSource {
 public:
  RepeatSource(SourcePtr below, std::int64_t count)
      : ForwardingSource(std::move(below)), count_(count) {}

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    // Epochs of a dataset that never ends are started by hand; they are kept far apart.
    const std::uint64_t first =
        count_ == kInfinite ? epoch << 32 : epoch * static_cast<std::uint64_t>(count_);
    return std::make_unique<RepeatIterator>(shared_below(), count_, first);
  }

  std::optional<std::int64_t> cardinality() const override {
    const std::optional<std::int64_t> length = below().cardinality();
    if (count_ == 0 || length == 0) return 0;
    if (!length) return std::nullopt;
    if (count_ == kInfinite || *length == kInfinite) return kInfinite;
    return internal::saturating_product(*length, count_);
  }

  SourcePtr over(SourcePtr below) const override {
    return std::make_shared<RepeatSource>(std::move(below), count_);
  }

 private:
  std::int64_t count_;
};

}  // namespace

Dataset Dataset::repeat(std::int64_t count) const {
  if (count < 0 && count != kInfinite) {
    fail(ErrorCode::kInvalidArgument,
         "Dataset::repeat: expected a count of at least 0, or kInfinite, got ", count);
  }
  return Dataset(std::make_shared<RepeatSource>(source_, count));
}

}  // namespace tutti
