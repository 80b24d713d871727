// Datasets over tensors that are already in memory: row by row, or as one element.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "tutti/data/dataset.h"

namespace tutti {
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
