// Residual networks: those of 8, 20, ... layers for small images, and ResNet-50.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tutti/model/sequential.h"

namespace tutti::examples {

/// He et al. 2015, section 4.2: 6 * blocks + 2 layers (blocks = 3: ResNet-20) on [size, size, 3],
/// shortcuts with 1x1 convolutions where shapes change. Gives logits [batch, classes].
Sequential small_resnet(std::int64_t blocks, std::int64_t size = 32, std::int64_t classes = 10);

/// ResNet-50 in the form of torchvision (stride in the 3x3 convolution, "v1.5"; epsilon 1e-5) on
/// [size, size, 3]: 25,557,032 trainable parameters for 1000 classes, the dense layer included.
/// Where a stride of 2 meets an even image "same" pads one pixel more at the end than at the
/// start, torchvision as many at both. Under a mixed policy the dense layer stays in float32.
Sequential resnet50(std::int64_t size = 224, std::int64_t classes = 1000);

}  // namespace tutti::examples
