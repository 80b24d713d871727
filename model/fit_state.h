// What a running fit goes on from, beyond the model: where it is, its data, metrics, callbacks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tutti/checkpoint/checkpoint.h"
#include "tutti/model/callback.h"
#include "tutti/model/compiled_model.h"
#include "tutti/model/logs.h"

namespace tutti::internal {

/// Where a call of fit is.
struct FitProgress {
  FitPoint point;
  bool is_ended = false;  // before its last epoch
  History history;
  Logs logs;  // of the last epoch that ended

  Json to_json() const;
  static FitProgress from_json(const Json& json);
};

/// The sums that metrics have gathered, each replica's own.
TensorProvider tensors_of_metrics(CompiledModel& compiled);

StateProvider state_of_callbacks(const std::vector<AnyCallback>& callbacks);
TensorProvider tensors_of_callbacks(const std::vector<AnyCallback>& callbacks);

}  // namespace tutti::internal
