// Networks for the timed steps, and random data of their shapes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "tutti/data/dataset.h"
#include "tutti/model/model.h"

namespace tutti::benchmarks {

/// Returns one batch of `rows` random examples and labels. For "gpt", they are tokens [rows, 128]
/// and the following tokens; for other models, images or features with 10 classes.
Dataset synthetic_data(const std::string& model, std::int64_t rows);

/// Returns the network "cifar10_cnn", "small_cnn", "mlp", "resnet20", "gpt" or "tiny", with
/// weights. Its outputs are logits [batch, 10], or [batch, 128, 256] for "gpt".
std::unique_ptr<Model> make_model(const std::string& model);

}  // namespace tutti::benchmarks
