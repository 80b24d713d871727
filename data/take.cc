// The first elements, by number or by predicate, or all but the first.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "tutti/data/forwarding_source.h"

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

class TakeSource : public internal::ForwardingSource {
 public:
  TakeSource(std::shared_ptr<const DatasetSource> below, std::int64_t count)
      : ForwardingSource(std::move(below)), count_(count) {}

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    return std::make_unique<TakeIterator>(below().iterate(epoch), count_);
  }
  SourcePtr over(SourcePtr below) const override {
    return std::make_shared<TakeSource>(std::move(below), count_);
  }

  std::optional<std::int64_t> cardinality() const override {
    const std::optional<std::int64_t> length = below().cardinality();
    if (count_ == 0) return 0;
    if (!length) return std::nullopt;
    return *length == kInfinite ? count_ : std::min(*length, count_);
  }

 private:
  std::int64_t count_;
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

class SkipSource : public internal::ForwardingSource {
 public:
  SkipSource(std::shared_ptr<const DatasetSource> below, std::int64_t count)
      : ForwardingSource(std::move(below)), count_(count) {}

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    return std::make_unique<SkipIterator>(below().iterate(epoch), count_);
  }
  SourcePtr over(SourcePtr below) const override {
    return std::make_shared<SkipSource>(std::move(below), count_);
  }

  std::optional<std::int64_t> cardinality() const override {
    const std::optional<std::int64_t> length = below().cardinality();
    if (!length || *length == kInfinite) return length;
    return std::max<std::int64_t>(*length - count_, 0);
  }

 private:
  std::int64_t count_;
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

// Elements up to the first that a predicate refuses.

namespace {

using Predicate = std::function<bool(const Element&)>;

class TakeWhileIterator : public ElementIterator {
 public:
  TakeWhileIterator(std::unique_ptr<ElementIterator> below, Predicate accepts)
      : below_(std::move(below)), accepts_(std::move(accepts)) {}

  std::optional<Element> next() override {
    if (!below_) return std::nullopt;
    std::optional<Element> element = below_->next();
    if (element && accepts_(*element)) return element;
    below_.reset();
    return std::nullopt;
  }

 private:
  std::unique_ptr<ElementIterator> below_;  // null once it has ended
  Predicate accepts_;
};

class TakeWhileSource : public internal::ForwardingSource {
 public:
  TakeWhileSource(std::shared_ptr<const DatasetSource> below, Predicate accepts)
      : ForwardingSource(std::move(below)), accepts_(std::move(accepts)) {}

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    return std::make_unique<TakeWhileIterator>(below().iterate(epoch), accepts_);
  }
  SourcePtr over(SourcePtr below) const override {
    return std::make_shared<TakeWhileSource>(std::move(below), accepts_);
  }
  std::optional<std::int64_t> cardinality() const override { return std::nullopt; }
  std::optional<std::int64_t> batch_size() const override { return std::nullopt; }

 private:
  Predicate accepts_;
};

}  // namespace

Dataset Dataset::take_while(std::function<bool(const Element&)> predicate) const {
  if (!predicate) {
    fail(ErrorCode::kInvalidArgument, "Dataset::take_while: expected a function, got none");
  }
  return Dataset(std::make_shared<TakeWhileSource>(source_, std::move(predicate)));
}

}  // namespace tutti
