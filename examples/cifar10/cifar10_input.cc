// Input of the CIFAR-10 tutorial.
// SPDX-License-Identifier: Apache-2.0
#include "examples/cifar10/cifar10_input.h"

#include <algorithm>

#include "tutti/core/executor.h"
#include "tutti/data/augment.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::examples::cifar10 {
namespace {

constexpr double kFractionInQueue = 0.4;
constexpr double kMaxBrightnessDelta = 63.0;
constexpr double kLowerContrast = 0.2;
constexpr double kUpperContrast = 1.8;
constexpr int kMaxThreads = 16;

/// Returns a step that converts to float and keeps values in 0 .. 255. image::convert_image_dtype()
/// would scale white to 1.
image::ImageStep to_float() {
  return [](const Tensor& image, const RandomStream&) { return cast(image, DType::kFloat32); };
}

Element with_int64_label(const Element& element) {
  return element.with_tensors({element[0], cast(element[1], DType::kInt64)});
}

Dataset pictures(const ImageData& data) {
  return Dataset::from_tensor_slices({data.images, data.labels});
}

}  // namespace

std::int64_t queue_size(std::int64_t batch_size) {
  return static_cast<std::int64_t>(kFractionInQueue * kNumExamplesForTraining) + 3 * batch_size;
}

int num_preprocessing_threads() { return std::clamp(num_hardware_threads() / 2, 1, kMaxThreads); }

Dataset distorted_inputs(const ImageData& data, const DistortedInputOptions& options) {
  const Dataset shuffled =
      pictures(data).shuffle(queue_size(options.batch_size), options.seed).map(&with_int64_label);
  return augment_images(shuffled,
                        {image::random_crop(kImageSize), image::random_flip_left_right(),
                         to_float(), image::random_brightness(kMaxBrightnessDelta),
                         image::random_contrast(kLowerContrast, kUpperContrast),
                         image::per_image_standardization()},
                        {.seed = options.seed, .num_parallel_calls = options.num_threads})
      .repeat()
      .batch(options.batch_size, {.drop_remainder = true});
}

Dataset evaluation_inputs(const ImageData& data, std::int64_t batch_size) {
  const auto prepare = [](const Element& element) {
    const Tensor middle = image::center_crop(element[0], kImageSize, kImageSize);
    return element.with_tensors(
        {image::per_image_standardization(middle), cast(element[1], DType::kInt64)});
  };
  return pictures(data)
      .map(prepare, {.num_parallel_calls = num_preprocessing_threads()})
      .batch(batch_size);
}

ImageData read_images(const std::string& data_dir, Split split) {
  try {
    return read_cifar10(data_dir, split);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNotFound) throw;
    fail(ErrorCode::kNotFound, error.message(),
         "; set --data_dir to the CIFAR-10 folder, or train on synthetic images with --synthetic");
  }
}

}  // namespace tutti::examples::cifar10
