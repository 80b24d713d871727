// The networks that are timed, and the shapes of their examples.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "tutti/data/dataset.h"
#include "tutti/model/model.h"

namespace tutti::benchmarks {

/// One batch of `rows` random examples and labels: images or features and 10 classes, or of "gpt"
/// tokens [rows, 128] and those behind them.
Dataset synthetic_data(const std::string& model, std::int64_t rows);

/// "cifar10_cnn", "small_cnn", "mlp", "resnet20", "gpt" or "tiny", with weights, giving logits
/// [batch, 10], or of "gpt" [batch, 128, 256].
std::unique_ptr<Model> make_model(const std::string& model);

}  // namespace tutti::benchmarks
