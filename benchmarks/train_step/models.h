// The networks that are timed, and the shapes of their examples.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/model/sequential.h"

namespace tutti::benchmarks {

/// [height, width, channels] or [features] of one example. All models have 10 classes.
Shape example_shape(const std::string& model);

/// "cifar10_cnn", "small_cnn", "mlp", "resnet20" or "tiny", with weights, giving logits [batch,
/// 10].
Sequential make_model(const std::string& model);

}  // namespace tutti::benchmarks
