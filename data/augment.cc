// Augmentation with random numbers that are keyed by sample; mixup and CutMix.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/augment.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/names.h"
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
  internal::require(!steps.empty(), "augment_images: expected at least one step, got none");
  for (std::size_t i = 0; i < steps.size(); ++i) {
    internal::require(steps[i], "augment_images: step ", i, " is empty; expected a function");
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

// Mixup and cutmix.

namespace {

// Stream numbers for a batch, far from those that augment_images() uses.
constexpr std::uint64_t kPartnersStream = std::uint64_t{1} << 40;
constexpr std::uint64_t kWeightStreams = std::uint64_t{2} << 40;  // + row
constexpr std::uint64_t kBoxStreams = std::uint64_t{3} << 40;     // + row

using Partners = std::vector<std::int64_t>;

/// Returns a permutation of the rows.
Partners draw_partners(std::int64_t rows, const SampleRandom& random) {
  Partners partners(static_cast<std::size_t>(rows));
  std::iota(partners.begin(), partners.end(), 0);
  internal::shuffle(partners, random.stream(kPartnersStream));
  return partners;
}

std::vector<double> draw_weights(std::int64_t rows, double alpha, const SampleRandom& random) {
  std::vector<double> weights(static_cast<std::size_t>(rows));
  for (std::size_t row = 0; row < weights.size(); ++row) {
    weights[row] = internal::sample_beta(random.stream(kWeightStreams + row), alpha, alpha);
  }
  return weights;
}

/// Returns w * x + (1 - w) * (the partner's x) for each row.
Tensor mix_rows(const Tensor& tensor, const Partners& partners, const std::vector<double>& weights,
                std::string_view who, const std::string& name) {
  internal::require(
      is_floating(tensor.dtype()), who, ": component '", name,
      "' cannot be mixed; expected a floating-point type, got ", tensor.dtype(), " of shape ",
      tensor.shape(),
      "; in map(), call one_hot() for labels or image::convert_image_dtype() for images");
  MutableTensor mixed(tensor.shape(), tensor.dtype(), tensor.device());
  visit_floating(tensor.dtype(), who, [&]<class T>() {
    using Wide = std::conditional_t<Half<T>, float, T>;  // 16-bit numbers are rounded once
    const std::size_t values =
        partners.empty() ? 0 : tensor.host_span<T>().size() / partners.size();
    const T* from = tensor.host_span<T>().data();
    T* to = mixed.span<T>().data();
    for (std::size_t row = 0; row < partners.size(); ++row) {
      const Wide weight = static_cast<Wide>(weights[row]);
      const Wide rest = static_cast<Wide>(1.0 - weights[row]);
      const T* own = from + row * values;
      const T* other = from + static_cast<std::size_t>(partners[row]) * values;
      for (std::size_t i = 0; i < values; ++i) {
        const Wide sum = weight * static_cast<Wide>(own[i]) + rest * static_cast<Wide>(other[i]);
        to[row * values + i] = static_cast<T>(sum);
      }
    }
  });
  return mixed.freeze();
}

Element mix(const Element& batch, const SampleRandom& random, double alpha) {
  const std::int64_t rows = batch.rows();
  const Partners partners = draw_partners(rows, random);
  const std::vector<double> weights = draw_weights(rows, alpha, random);
  std::vector<Tensor> mixed;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    mixed.push_back(mix_rows(batch[i], partners, weights, "mixup", batch.names()[i]));
  }
  return batch.with_tensors(std::move(mixed));
}

struct Box {
  std::int64_t top = 0, left = 0, bottom = 0, right = 0;
};

/// Returns a rectangle with about `share` of the image's area. Its centre is a random pixel; the
/// rectangle is clipped to the image.
Box draw_box(std::int64_t height, std::int64_t width, double share, const RandomStream& random) {
  const double side = std::sqrt(share);
  const auto half_height = static_cast<std::int64_t>(side * static_cast<double>(height)) / 2;
  const auto half_width = static_cast<std::int64_t>(side * static_cast<double>(width)) / 2;
  const auto y = static_cast<std::int64_t>(random.below(0, static_cast<std::uint64_t>(height)));
  const auto x = static_cast<std::int64_t>(random.below(1, static_cast<std::uint64_t>(width)));
  return {std::max<std::int64_t>(y - half_height, 0), std::max<std::int64_t>(x - half_width, 0),
          std::min(y + half_height, height), std::min(x + half_width, width)};
}

/// Copies box `box` of image `from` to the same box of image `to`, both [height, width, channels].
void copy_box(const std::byte* from, std::byte* to, const Box& box, std::int64_t width,
              std::int64_t pixel_bytes) {
  for (std::int64_t y = box.top; y < box.bottom; ++y) {
    const std::int64_t first = (y * width + box.left) * pixel_bytes;
    std::memcpy(to + first, from + first,
                static_cast<std::size_t>((box.right - box.left) * pixel_bytes));
  }
}

/// Copies a box from each row's partner into the row; sets the row's weight to the fraction of its
/// own pixels that remain.
Tensor cut_rows(const Tensor& images, const Partners& partners, std::vector<double>& weights,
                const SampleRandom& random) {
  const std::int64_t height = images.shape()[1], width = images.shape()[2];
  if (images.num_elements() == 0) return images;
  MutableTensor mixed;
  mixed.assign(images);
  mixed.make_unique();
  const auto pixel = images.shape()[3] * static_cast<std::int64_t>(size_of(images.dtype()));
  const std::int64_t image_bytes = height * width * pixel;
  for (std::size_t row = 0; row < partners.size(); ++row) {
    const Box box = draw_box(height, width, 1.0 - weights[row], random.stream(kBoxStreams + row));
    copy_box(images.bytes().data() + partners[row] * image_bytes,
             mixed.data() + static_cast<std::int64_t>(row) * image_bytes, box, width, pixel);
    const auto taken = (box.bottom - box.top) * (box.right - box.left);
    weights[row] = 1.0 - static_cast<double>(taken) / static_cast<double>(height * width);
  }
  return mixed.freeze();
}

Element cut(const Element& batch, const SampleRandom& random, double alpha) {
  const std::int64_t rows = batch.rows();
  internal::require(batch[0].rank() == 4, "cutmix: component '", batch.names()[0],
                    "': expected images [rows, height, width, channels], got shape ",
                    batch[0].shape());
  const Partners partners = draw_partners(rows, random);
  std::vector<double> weights = draw_weights(rows, alpha, random);
  std::vector<Tensor> mixed = {cut_rows(batch[0], partners, weights, random)};
  for (std::size_t i = 1; i < batch.size(); ++i) {
    mixed.push_back(mix_rows(batch[i], partners, weights, "cutmix", batch.names()[i]));
  }
  return batch.with_tensors(std::move(mixed));
}

using MixFunction = Element (*)(const Element& batch, const SampleRandom& random, double alpha);

template <class Options>
Dataset mixed_batches(const Dataset& batches, const Options& options, MixFunction fn,
                      std::string_view who) {
  const double alpha = options.alpha;
  internal::require(alpha > 0.0 && std::isfinite(alpha), who, ": expected an alpha above 0, got ",
                    alpha);
  return internal::augment_batches(
      batches,
      [fn, alpha](const Element& batch, const SampleRandom& random) {
        return fn(batch, random, alpha);
      },
      {.seed = options.seed, .num_parallel_calls = options.num_parallel_calls});
}

}  // namespace

Dataset mixup(const Dataset& batches, MixupOptions options) {
  return mixed_batches(batches, options, mix, "mixup");
}

Dataset cutmix(const Dataset& batches, CutmixOptions options) {
  return mixed_batches(batches, options, cut, "cutmix");
}

}  // namespace tutti

namespace tutti::internal {

// Samples of the beta distribution, computed from two gamma-distributed numbers.

// Let n = 2 * (kTries * g + t). Try t for gamma variable g draws a normal number from block n and a
// uniform number from block n + 1. A shape below 1 needs one more block, which follows those of
// both variables. The blocks used depend only on the key.

namespace {

/// Maximum number of tries. A try fails with a probability of at most 1/20, for every shape.
constexpr std::uint64_t kTries = 64;

/// Returns a uniform number in (0, 1], from block `block` of the stream.
double uniform_of_block(const RandomStream& random, std::uint64_t block) {
  return 1.0 - random.uniform64(2 * block);
}

/// Returns a gamma-distributed random number for a shape parameter of at least 1.
double large_gamma(const RandomStream& random, std::uint64_t variable, double shape) {
  const double d = shape - 1.0 / 3.0;
  const double c = 1.0 / std::sqrt(9.0 * d);
  for (std::uint64_t t = 0; t < kTries; ++t) {
    const std::uint64_t block = 2 * (kTries * variable + t);
    const double x = random.normal(block);
    const double root = 1.0 + c * x;
    if (root <= 0.0) continue;
    const double v = root * root * root;
    if (std::log(uniform_of_block(random, block + 1)) < 0.5 * x * x + d - d * v + d * std::log(v)) {
      return d * v;
    }
  }
  return d;  // approximate median; probability of getting here: about 20^-64 per call
}

/// Returns the logarithm of a gamma-distributed random number, because the number itself may be too
/// small for a double if the shape is small. G(shape) is G(shape + 1) * U^(1 / shape).
double log_gamma_variable(const RandomStream& random, std::uint64_t variable, double shape) {
  if (shape >= 1.0) return std::log(large_gamma(random, variable, shape));
  const double u = uniform_of_block(random, 4 * kTries + variable);
  return std::log(large_gamma(random, variable, shape + 1.0)) + std::log(u) / shape;
}

}  // namespace

double sample_beta(const RandomStream& random, double a, double b) {
  const double log_x = log_gamma_variable(random, 0, a);
  const double log_y = log_gamma_variable(random, 1, b);
  return 1.0 / (1.0 + std::exp(log_y - log_x));
}

}  // namespace tutti::internal
