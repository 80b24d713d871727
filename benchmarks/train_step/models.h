// Networks that are timed, and the shapes of their examples.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "tutti/data/dataset.h"
#include "tutti/model/model.h"

namespace tutti::benchmarks {

/// Returns one batch of `rows` random examples and labels: images or features with 10 classes, or
/// for "gpt" tokens [rows, 128] and the following tokens.
Dataset synthetic_data(const std::string& model, std::int64_t rows);

/// Returns "cifar10_cnn", "small_cnn", "mlp", "resnet20", "gpt" or "tiny", with weights. Outputs
/// logits [batch, 10], or for "gpt" [batch, 128, 256].
std::unique_ptr<Model> make_model(const std::string& model);

}  // namespace tutti::benchmarks
