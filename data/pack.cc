// Rows of numbers, joined one behind the other and cut into rows of one length.
// SPDX-License-Identifier: Apache-2.0
#include <utility>
#include <vector>

#include "data/forwarding_source.h"

namespace tutti {
namespace {

struct Packing {
  std::int64_t length = 1;
  std::int64_t shift = 1;
  PackOptions options;
};

/// The numbers of an element, which has them alone.
Tensor numbers_in(const Element& element) {
  const bool is_index =
      element.size() == 1 && element[0].rank() == 1 &&
      (element[0].dtype() == DType::kInt64 || element[0].dtype() == DType::kInt32);
  if (is_index) return element[0];
  fail(ErrorCode::kInvalidArgument,
       "Dataset::pack: expected elements of one component, numbers [n] of int64 or int32, got ",
       element.size(), " components",
       element.size() > 0 ? concat(", the first ", element[0].dtype(), " ", element[0].shape())
                          : std::string());
}

class PackIterator : public ElementIterator {
 public:
  PackIterator(std::unique_ptr<ElementIterator> below, const Packing& packing)
      : below_(std::move(below)), packing_(packing) {}

  std::optional<Element> next() override {
    if (!fill()) return std::nullopt;
    const auto part = [&](std::int64_t first) {
      const std::int64_t* const from = numbers_.data() + begin_ + first;
      return Tensor::from(Shape{packing_.length},
                          std::vector<std::int64_t>(from, from + packing_.length));
    };
    std::vector<Tensor> components = {part(0)};
    if (packing_.options.next_as_labels) components.push_back(part(1));
    begin_ += packing_.shift;
    return Element(std::move(components));
  }

  void skip(std::int64_t count) override {
    for (; count > 0 && fill(); --count) begin_ += packing_.shift;
  }

 private:
  /// Whether there are numbers for another row, after reading as far as it takes.
  bool fill() {
    const std::int64_t wanted = packing_.length + (packing_.options.next_as_labels ? 1 : 0);
    while (size() - begin_ < wanted) {
      const std::optional<Element> element = below_->next();
      if (!element) return false;
      drop_used();
      const Tensor numbers = numbers_in(*element);
      if (numbers.dtype() == DType::kInt64) {
        append(numbers.host_span<std::int64_t>());
      } else {
        append(numbers.host_span<std::int32_t>());
      }
      if (packing_.options.end) numbers_.push_back(*packing_.options.end);
    }
    return true;
  }

  std::int64_t size() const { return static_cast<std::int64_t>(numbers_.size()); }

  /// What no row begins before any more; rows may stand further apart than they are long.
  void drop_used() {
    const std::int64_t used = std::min(begin_, size());
    numbers_.erase(numbers_.begin(), numbers_.begin() + used);
    begin_ -= used;
  }

  template <class T>
  void append(std::span<const T> numbers) {
    numbers_.insert(numbers_.end(), numbers.begin(), numbers.end());
  }

  std::unique_ptr<ElementIterator> below_;
  const Packing packing_;
  std::vector<std::int64_t> numbers_;
  std::int64_t begin_ = 0;  // of the next row, in them
};

class PackSource : public internal::Decorator<PackSource, PackIterator, Packing> {
 public:
  using Decorator::Decorator;
  std::optional<std::int64_t> cardinality() const override {
    const std::optional<std::int64_t> below_has = below().cardinality();
    return below_has == kInfinite ? below_has : std::nullopt;
  }
  std::optional<std::int64_t> batch_size() const override { return std::nullopt; }
  std::optional<int> batch_depth() const override { return 0; }
  bool may_end_in_partial_batch() const override { return false; }
};

}  // namespace

Dataset Dataset::pack(std::int64_t length, PackOptions options) const {
  const std::int64_t shift = options.shift.value_or(length);
  if (length < 1 || shift < 1) {
    fail(ErrorCode::kInvalidArgument,
         "Dataset::pack: expected a length and a shift of at least 1, got ", length, " and ",
         shift);
  }
  return Dataset(std::make_shared<PackSource>(source_, Packing{length, shift, options}));
}

}  // namespace tutti
