// Datasets: iteration, which all share, and where elements come from: numbers, a user's function,
// tensors.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/dataset.h"

#include <algorithm>
#include <utility>

#include "data/forwarding_source.h"
#include "data/function_random.h"
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

/// Elements by their numbers.
class IndexedSource : public DatasetSource {
 public:
  using At = std::function<Element(std::int64_t index)>;
  IndexedSource(std::int64_t length, std::optional<int> batch_depth, At at)
      : length_(length), batch_depth_(batch_depth), at_(std::move(at)) {}

  std::unique_ptr<ElementIterator> iterate(std::uint64_t) const override {
    return std::make_unique<internal::IndexedIterator>(length_, at_);
  }
  std::optional<std::int64_t> cardinality() const override { return length_; }
  std::optional<int> batch_depth() const override { return batch_depth_; }

 private:
  const std::int64_t length_;
  const std::optional<int> batch_depth_;
  const At at_;
};

}  // namespace

Dataset Dataset::range(std::int64_t end) { return range(0, end); }

Dataset Dataset::range(std::int64_t begin, std::int64_t end, std::int64_t step) {
  if (step == 0) {
    fail(ErrorCode::kInvalidArgument, "Dataset::range: expected a step that is not 0, got 0");
  }
  return Dataset(std::make_shared<IndexedSource>(
      range_length(begin, end, step), 0, [begin, step](std::int64_t index) {
        return Element({Tensor::from<std::int64_t>({}, {begin + index * step})});
      }));
}

// A dataset made of a user's function.

namespace {

class GeneratorIterator : public ElementIterator {
 public:
  GeneratorIterator(Dataset::Generator generate, internal::PassRandom random)
      : generate_(std::move(generate)), random_(random) {}

  std::optional<Element> next() override {
    if (!generate_) return std::nullopt;
    const RandomContextScope scope(random_.at(next_number_++));
    std::optional<Element> element = generate_();
    if (!element) generate_ = nullptr;  // the function must not be asked again
    return element;
  }

 private:
  Dataset::Generator generate_;
  internal::PassRandom random_;
  std::uint64_t next_number_ = 0;
};

class GeneratorSource : public DatasetSource {
 public:
  using Make = std::function<Dataset::Generator(std::uint64_t epoch)>;
  explicit GeneratorSource(Make make) : make_(std::move(make)) {}

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    const internal::PassRandom random = random_.of_pass(epoch);
    const RandomContextScope before_the_first(random.at(~std::uint64_t{0}));
    Dataset::Generator generate = make_(epoch);
    if (!generate) {
      fail(ErrorCode::kInvalidArgument,
           "Dataset::from_generator: expected a function that yields elements, got an empty one");
    }
    return std::make_unique<GeneratorIterator>(std::move(generate), random);
  }
  std::optional<std::int64_t> cardinality() const override { return std::nullopt; }

 private:
  Make make_;
  internal::FunctionRandom random_;
};

}  // namespace

Dataset Dataset::from_generator(std::function<Generator(std::uint64_t epoch)> make) {
  internal::require_function(make, "Dataset::from_generator");
  return Dataset(std::make_shared<GeneratorSource>(std::move(make)));
}

// Datasets over tensors that are already in memory: row by row, or as one element.

namespace {

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
  const std::int64_t rows = whole.rows();
  return Dataset(
      std::make_shared<IndexedSource>(rows, 0, [whole = std::move(whole)](std::int64_t row) {
        std::vector<Tensor> tensors;
        tensors.reserve(whole.size());
        for (const Tensor& tensor : whole.tensors()) {
          tensors.push_back(
              tensor.detached_rows(row, 1).detached_reshape(tensor.shape().without_axis(0)));
        }
        return whole.with_tensors(std::move(tensors));
      }));
}

Dataset Dataset::from_tensors(std::vector<Tensor> tensors) {
  Element only = make_element(std::move(tensors), "Dataset::from_tensors");
  return Dataset(std::make_shared<IndexedSource>(
      1, std::nullopt, [only = std::move(only)](std::int64_t) { return only; }));
}

}  // namespace tutti
