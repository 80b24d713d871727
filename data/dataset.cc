// Datasets: iteration, which all share, and where elements come from: numbers, a user's function,
// tensors.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/dataset.h"

#include <algorithm>
#include <utility>

#include "tutti/data/forwarding_source.h"
#include "tutti/tensor/device_scope.h"

namespace tutti {

void ElementIterator::skip(std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (!next()) return;
  }
}

SourcePtr DatasetSource::with_inputs(std::vector<SourcePtr>) const {
  fail(ErrorCode::kUnimplemented,
       "DatasetSource::with_inputs: this source has no inputs that could be exchanged; expected a "
       "source that overrides inputs() and with_inputs() together");
}

Dataset::Iterator::Iterator(std::shared_ptr<ElementIterator> elements)
    : elements_(std::move(elements)) {
  ++*this;
}

Dataset::Iterator& Dataset::Iterator::operator++() {
  const NoDeviceScope elements_are_on_the_host;
  current_ = elements_->next();
  return *this;
}

Dataset::Iterator Dataset::begin() const { return Iterator(iterate()); }

// The numbers from begin to end.

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

// A dataset made of a user's function.

namespace {

class GeneratorIterator : public ElementIterator {
 public:
  explicit GeneratorIterator(Dataset::Generator generate) : generate_(std::move(generate)) {}

  std::optional<Element> next() override {
    if (!generate_) return std::nullopt;
    std::optional<Element> element = generate_();
    if (!element) generate_ = nullptr;  // the function must not be asked again
    return element;
  }

 private:
  Dataset::Generator generate_;
};

class GeneratorSource : public DatasetSource {
 public:
  using Make = std::function<Dataset::Generator(std::uint64_t epoch)>;
  explicit GeneratorSource(Make make) : make_(std::move(make)) {}

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    Dataset::Generator generate = make_(epoch);
    if (!generate) {
      fail(ErrorCode::kInvalidArgument,
           "Dataset::from_generator: expected a function that yields elements, got an empty one");
    }
    return std::make_unique<GeneratorIterator>(std::move(generate));
  }
  std::optional<std::int64_t> cardinality() const override { return std::nullopt; }

 private:
  Make make_;
};

}  // namespace

Dataset Dataset::from_generator(std::function<Generator(std::uint64_t epoch)> make) {
  internal::require_function(make, "Dataset::from_generator");
  return Dataset(std::make_shared<GeneratorSource>(std::move(make)));
}

// Datasets over tensors that are already in memory: row by row, or as one element.

namespace {

class SlicesIterator : public ElementIterator {
 public:
  explicit SlicesIterator(Element whole) : whole_(std::move(whole)), rows_(whole_.rows()) {}

  std::optional<Element> next() override {
    if (row_ == rows_) return std::nullopt;
    std::vector<Tensor> tensors;
    tensors.reserve(whole_.size());
    for (const Tensor& tensor : whole_.tensors()) {
      tensors.push_back(tensor.rows(row_, 1).reshaped(tensor.shape().without_axis(0)));
    }
    ++row_;
    return whole_.with_tensors(std::move(tensors));
  }

  void skip(std::int64_t count) override {
    if (count > 0) row_ += std::min(count, rows_ - row_);
  }

 private:
  Element whole_;
  std::int64_t rows_;
  std::int64_t row_ = 0;
};

class SlicesSource : public DatasetSource {
 public:
  explicit SlicesSource(Element whole) : whole_(std::move(whole)) {}
  std::unique_ptr<ElementIterator> iterate(std::uint64_t) const override {
    return std::make_unique<SlicesIterator>(whole_);
  }
  std::optional<std::int64_t> cardinality() const override { return whole_.rows(); }
  std::optional<int> batch_depth() const override { return 0; }

 private:
  Element whole_;
};

class OneElementIterator : public ElementIterator {
 public:
  explicit OneElementIterator(Element element) : element_(std::move(element)) {}
  std::optional<Element> next() override { return std::exchange(element_, std::nullopt); }

 private:
  std::optional<Element> element_;
};

class OneElementSource : public DatasetSource {
 public:
  explicit OneElementSource(Element element) : element_(std::move(element)) {}
  std::unique_ptr<ElementIterator> iterate(std::uint64_t) const override {
    return std::make_unique<OneElementIterator>(element_);
  }
  std::optional<std::int64_t> cardinality() const override { return 1; }

 private:
  Element element_;
};

Element make_element(std::vector<Tensor> tensors, const char* who) {
  if (tensors.empty()) {
    fail(ErrorCode::kInvalidArgument, who, ": expected at least one tensor, got none");
  }
  return Element(std::move(tensors));
}

}  // namespace

Dataset Dataset::from_tensor_slices(std::vector<Tensor> tensors) {
  constexpr const char* kWho = "Dataset::from_tensor_slices";
  Element whole = make_element(std::move(tensors), kWho);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const Shape& shape = whole[i].shape();
    if (shape.rank() == 0 || shape[0] != whole[0].shape()[0]) {
      fail(ErrorCode::kInvalidArgument, kWho,
           ": expected tensors with equal first dimensions, got ", whole[0].shape(),
           " for component 0 and ", shape, " for component ", i);
    }
  }
  return Dataset(std::make_shared<SlicesSource>(std::move(whole)));
}

Dataset Dataset::from_tensors(std::vector<Tensor> tensors) {
  return Dataset(std::make_shared<OneElementSource>(
      make_element(std::move(tensors), "Dataset::from_tensors")));
}

}  // namespace tutti
