// Augmentation keyed by sample.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/augment.h"

#include <algorithm>
#include <utility>

#include "tutti/data/data_threads.h"
#include "tutti/data/forwarding_source.h"

namespace tutti {
namespace {

enum class Rows { kKept, kUnknown };

class AugmentSource : public internal::ForwardingSource {
 public:
  AugmentSource(SourcePtr below, std::shared_ptr<const AugmentFunction> fn,
                const AugmentOptions& options, Rows rows)
      : ForwardingSource(std::move(below)), fn_(std::move(fn)), options_(options), rows_(rows) {}

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    RandomKey key;
    key.seed = options_.seed;
    key.purpose = kAugmentPurpose;
    key.a = epoch;
    auto with_random = [fn = fn_, key](const Element& element, std::uint64_t number) {
      RandomKey sample = key;
      sample.b = number;
      return (*fn)(element, SampleRandom(sample));
    };
    return internal::make_map(below().iterate(epoch), std::move(with_random),
                              options_.num_parallel_calls);
  }

  SourcePtr over(SourcePtr below) const override {
    return std::make_shared<AugmentSource>(std::move(below), fn_, options_, rows_);
  }
  std::optional<std::int64_t> batch_size() const override {
    return rows_ == Rows::kKept ? below().batch_size() : std::nullopt;
  }
  std::optional<int> batch_depth() const override {
    return rows_ == Rows::kKept ? below().batch_depth() : std::nullopt;
  }

 private:
  std::shared_ptr<const AugmentFunction> fn_;
  AugmentOptions options_;
  Rows rows_;
};

Dataset make_augmented(const Dataset& dataset, AugmentFunction fn, const AugmentOptions& options,
                       Rows rows) {
  internal::require_function(fn, "augment");
  if (options.num_parallel_calls < 1) {
    fail(ErrorCode::kInvalidArgument, "augment: expected num_parallel_calls of at least 1, got ",
         options.num_parallel_calls);
  }
  return Dataset(std::make_shared<AugmentSource>(
      dataset.shared_source(), std::make_shared<const AugmentFunction>(std::move(fn)), options,
      rows));
}

std::size_t component_number(const Element& element, const std::string& name) {
  if (name.empty() && element.size() > 0) return 0;
  const auto found = std::find(element.names().begin(), element.names().end(), name);
  if (found == element.names().end()) {
    fail(ErrorCode::kNotFound, "augment_images: no component is called '", name,
         "'; expected one of [", join(element.names()), "]");
  }
  return static_cast<std::size_t>(found - element.names().begin());
}

}  // namespace

Dataset augment(const Dataset& dataset, AugmentFunction fn, AugmentOptions options) {
  return make_augmented(dataset, std::move(fn), options, Rows::kUnknown);
}

Dataset augment_images(const Dataset& dataset, std::vector<image::ImageStep> steps,
                       AugmentImagesOptions options) {
  if (steps.empty()) {
    fail(ErrorCode::kInvalidArgument, "augment_images: expected at least one step, got none");
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (!steps[i]) {
      fail(ErrorCode::kInvalidArgument, "augment_images: step ", i, " is no function");
    }
  }
  AugmentFunction apply = [steps = std::move(steps), name = options.component](
                              const Element& element, const SampleRandom& random) {
    const std::size_t number = component_number(element, name);
    std::vector<Tensor> tensors = element.tensors();
    for (std::size_t i = 0; i < steps.size(); ++i) {
      tensors[number] = steps[i](tensors[number], random.stream(i));
    }
    return element.with_tensors(std::move(tensors));
  };
  return make_augmented(dataset, std::move(apply),
                        {.seed = options.seed, .num_parallel_calls = options.num_parallel_calls},
                        Rows::kUnknown);
}

namespace internal {

Dataset augment_batches(const Dataset& dataset, AugmentFunction fn, AugmentOptions options) {
  return make_augmented(dataset, std::move(fn), options, Rows::kKept);
}

}  // namespace internal
}  // namespace tutti
