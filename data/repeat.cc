// The same dataset again and again, each pass a new epoch for what is below.
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "tutti/data/forwarding_source.h"

namespace tutti {
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

class RepeatSource : public DatasetSource {
 public:
  RepeatSource(std::shared_ptr<const DatasetSource> below, std::int64_t count)
      : below_(std::move(below)), count_(count) {}

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    // Epochs of a dataset that never ends are started by hand; they are kept far apart.
    const std::uint64_t first =
        count_ == kInfinite ? epoch << 32 : epoch * static_cast<std::uint64_t>(count_);
    return std::make_unique<RepeatIterator>(below_, count_, first);
  }

  std::optional<std::int64_t> cardinality() const override {
    const std::optional<std::int64_t> length = below_->cardinality();
    if (count_ == 0 || length == 0) return 0;
    if (!length) return std::nullopt;
    if (count_ == kInfinite || *length == kInfinite) return kInfinite;
    return internal::saturating_product(*length, count_);
  }

  std::optional<std::int64_t> batch_size() const override { return below_->batch_size(); }
  std::optional<int> batch_depth() const override { return below_->batch_depth(); }
  bool may_end_in_partial_batch() const override { return below_->may_end_in_partial_batch(); }

  std::vector<SourcePtr> inputs() const override { return {below_}; }
  SourcePtr with_inputs(std::vector<SourcePtr> inputs) const override {
    return std::make_shared<RepeatSource>(std::move(inputs.at(0)), count_);
  }

 private:
  std::shared_ptr<const DatasetSource> below_;
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
