// Augmentation keyed by sample.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/augment.h"

#include <algorithm>
#include <utility>

#include "data/data_threads.h"
#include "data/forwarding_source.h"

namespace tutti {
namespace {

using internal::Rows;

Dataset make_augmented(const Dataset& dataset, AugmentFunction fn, const AugmentOptions& options,
                       Rows rows) {
  internal::require_function(fn, "augment");
  auto of_epoch = [fn = std::make_shared<const AugmentFunction>(std::move(fn)),
                   seed = options.seed](std::uint64_t epoch) -> internal::NumberedFunction {
    return [fn, key = RandomKey{.seed = seed, .purpose = kAugmentPurpose, .a = epoch}](
               const Element& element, std::uint64_t number) {
      RandomKey sample = key;
      sample.b = number;
      return (*fn)(element, SampleRandom(sample));
    };
  };
  return internal::map_numbered(dataset, std::move(of_epoch), options.num_parallel_calls, "augment",
                                rows);
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
