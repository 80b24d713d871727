// The numbers from begin to end.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tutti/data/dataset.h"

namespace tutti {
namespace {

// Differences of int64 numbers need 64 bits without a sign.
std::int64_t range_length(std::int64_t begin, std::int64_t end, std::int64_t step) {
  const auto low = static_cast<std::uint64_t>(step > 0 ? begin : end);
  const auto high = static_cast<std::uint64_t>(step > 0 ? end : begin);
  if (step > 0 ? begin >= end : begin <= end) return 0;
  const auto stride =
      step > 0 ? static_cast<std::uint64_t>(step) : -static_cast<std::uint64_t>(step);
  const std::uint64_t length = (high - low - 1) / stride + 1;
  return static_cast<std::int64_t>(std::min<std::uint64_t>(length, INT64_MAX));
}

class RangeIterator : public ElementIterator {
 public:
  RangeIterator(std::int64_t begin, std::int64_t step, std::int64_t length)
      : begin_(begin), step_(step), length_(length) {}

  std::optional<Element> next() override {
    if (index_ == length_) return std::nullopt;
    const std::int64_t value = begin_ + index_ * step_;
    ++index_;
    return Element({Tensor::from<std::int64_t>({}, {value})});
  }

  void skip(std::int64_t count) override {
    if (count > 0) index_ += std::min(count, length_ - index_);
  }

 private:
  std::int64_t begin_;
  std::int64_t step_;
  std::int64_t length_;
  std::int64_t index_ = 0;
};

class RangeSource : public DatasetSource {
 public:
  RangeSource(std::int64_t begin, std::int64_t end, std::int64_t step)
      : begin_(begin), step_(step), length_(range_length(begin, end, step)) {}
  std::unique_ptr<ElementIterator> iterate(std::uint64_t) const override {
    return std::make_unique<RangeIterator>(begin_, step_, length_);
  }
  std::optional<std::int64_t> cardinality() const override { return length_; }
  std::optional<int> batch_depth() const override { return 0; }

 private:
  std::int64_t begin_;
  std::int64_t step_;
  std::int64_t length_;
};

}  // namespace

Dataset Dataset::range(std::int64_t end) { return range(0, end); }

Dataset Dataset::range(std::int64_t begin, std::int64_t end, std::int64_t step) {
  if (step == 0) {
    fail(ErrorCode::kInvalidArgument, "Dataset::range: expected a step that is not 0, got 0");
  }
  return Dataset(std::make_shared<RangeSource>(begin, end, step));
}

}  // namespace tutti
