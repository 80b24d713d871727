// Implements residual networks.
// SPDX-License-Identifier: Apache-2.0
#include "examples/common/resnet.h"

#include <memory>
#include <utility>
#include <vector>

#include "tutti/model/layers/layers.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::examples {
namespace {

Conv2D convolution(std::int64_t filters, std::int64_t size, std::int64_t stride = 1) {
  return Conv2D(
      filters, size,
      {.strides = stride, .padding = "same", .use_bias = false, .kernel_initializer = "he_normal"});
}

/// Block of convolutions with batch normalisation and relu, and a shortcut: a 1x1 convolution if
/// the shape changes.
class ResidualBlock final : public Layer {
 public:
  ResidualBlock(std::vector<Conv2D> convolutions, Conv2D shortcut,
                const BatchNormalizationOptions& norm)
      : convolutions_(std::move(convolutions)),
        shortcut_(std::move(shortcut)),
        shortcut_norm_(norm) {
    // Each convolution needs a new layer, because copies of a layer share weights.
    for (std::size_t i = 0; i < convolutions_.size(); ++i) norms_.emplace_back(norm);
  }

 protected:
  Shape build(const Shape& input) override {
    Shape shape = input;
    for (std::size_t i = 0; i < convolutions_.size(); ++i) {
      shape = add_layer(norms_[i], add_layer(convolutions_[i], shape));
    }
    projects_ = shape != input;
    if (projects_) add_layer(shortcut_norm_, add_layer(shortcut_, input));
    return shape;
  }
  Tensor call(const Tensor& x, CallContext context) const override {
    Tensor y = x;
    for (std::size_t i = 0; i < convolutions_.size(); ++i) {
      y = norms_[i](convolutions_[i](i == 0 ? y : relu(y), context), context);
    }
    return add_relu(y, projects_ ? shortcut_norm_(shortcut_(x, context), context) : x);
  }

 private:
  std::vector<Conv2D> convolutions_;
  std::vector<BatchNormalization> norms_;
  bool projects_ = false;
  Conv2D shortcut_;
  BatchNormalization shortcut_norm_;
};

using Layers = std::vector<std::shared_ptr<Layer>>;

template <class L>
void append(Layers& layers, L layer) {
  layers.push_back(std::make_shared<L>(std::move(layer)));
}

ResidualBlock basic_block(std::int64_t filters, std::int64_t stride) {
  return ResidualBlock({convolution(filters, 3, stride), convolution(filters, 3)},
                       convolution(filters, 1, stride), {});
}

/// Returns a block of three convolutions: 1x1 to `filters`, 3x3, and 1x1 to 4 * `filters`.
ResidualBlock bottleneck(std::int64_t filters, std::int64_t stride,
                         const BatchNormalizationOptions& norm) {
  return ResidualBlock(
      {convolution(filters, 1), convolution(filters, 3, stride), convolution(4 * filters, 1)},
      convolution(4 * filters, 1, stride), norm);
}

}  // namespace

Sequential small_resnet(std::int64_t blocks, std::int64_t size, std::int64_t classes) {
  Layers layers;
  append(layers, convolution(16, 3));
  append(layers, BatchNormalization());
  append(layers, Relu());
  for (const std::int64_t filters : {16, 32, 64}) {
    for (std::int64_t block = 0; block < blocks; ++block) {
      append(layers, basic_block(filters, block == 0 && filters > 16 ? 2 : 1));
    }
  }
  append(layers, GlobalAveragePooling2D());
  append(layers, Dense(classes));
  return Sequential("", Input{{size, size, 3}}, std::move(layers));
}

Sequential resnet50(std::int64_t size, std::int64_t classes) {
  const BatchNormalizationOptions norm{.momentum = 0.9, .epsilon = 1e-5};
  Layers layers;
  append(layers, convolution(64, 7, 2));
  append(layers, BatchNormalization(norm));
  append(layers, Relu());
  append(layers, MaxPooling2D(3, {.strides = 2, .padding = "same"}));
  const std::pair<std::int64_t, int> stages[] = {{64, 3}, {128, 4}, {256, 6}, {512, 3}};
  for (const auto& [filters, blocks] : stages) {
    for (int block = 0; block < blocks; ++block) {
      append(layers, bottleneck(filters, block == 0 && filters > 64 ? 2 : 1, norm));
    }
  }
  append(layers, GlobalAveragePooling2D());
  Dense head(classes);
  if (head.dtype() != DType::kFloat64) head.set_dtype_policy("float32");
  append(layers, head);
  return Sequential("", Input{{size, size, 3}}, std::move(layers));
}

}  // namespace tutti::examples
