// Residual networks of 8, 20, ... layers for small images, and ResNet-50.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tutti/model/sequential.h"

namespace tutti::examples {

/// Returns a network of 6 * blocks + 2 layers (blocks = 3: ResNet-20) for images [size, size, 3],
/// with 1x1 convolutions as shortcuts (He et al. 2015, section 4.2). Its outputs are logits [batch,
/// classes].
Sequential small_resnet(std::int64_t blocks, std::int64_t size = 32, std::int64_t classes = 10);

/// Returns ResNet-50 as in torchvision (stride in the 3x3 convolution, "v1.5"; epsilon 1e-5) for
/// images [size, size, 3]. It has 25,557,032 trainable parameters for 1000 classes, including the
/// dense layer. For a stride of 2 and an even image, "same" padding adds one more pixel at the end
/// than at the start, whereas torchvision pads both ends equally. Under a mixed policy, the dense
/// layer remains float32.
Sequential resnet50(std::int64_t size = 224, std::int64_t classes = 1000);

}  // namespace tutti::examples
