// What the copies of a model share beyond its layers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "tutti/model/compiled_model.h"
#include "tutti/model/fit_loop.h"

namespace tutti {

struct Model::State {
  Strategy* strategy = nullptr;  // outlives the model's use
  std::unique_ptr<internal::CompiledModel> compiled;
  std::int64_t epochs_trained = 0;
  bool stop_requested = false;       // at the end of the epoch, of which no batch follows
  bool is_interrupted = false;       // fit returns at once
  internal::FitLoop* fit = nullptr;  // that runs
};

}  // namespace tutti
