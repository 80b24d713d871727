// The file of --metrics-json: losses, speed and hashes of a run.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>

#include "examples/common/example_options.h"
#include "tutti/autograd/variable.h"
#include "tutti/model/training/training_session.h"

namespace tutti::examples {

/// A record that keeps losses where --metrics-json reports them.
TrainingRecord make_record(const ExampleOptions& options);

/// Writes --metrics-json (if it was given): one JSON object. `slots` are the
/// optimizer's state.
void write_metrics(const ExampleOptions& options, const TrainingRecord& record, double accuracy,
                   Strategy& strategy, std::span<const Variable> weights,
                   std::span<const Variable> slots);

/// What the flags want of a loop of one's own.
TrainingSessionOptions session_options(const ExampleOptions& options);

/// Ends the session and writes --metrics-json. The exit code: the session's, or 1 when the last
/// value is below `min_value`.
int finish(TrainingSession& session, const ExampleOptions& options, Strategy& strategy,
           std::span<const Variable> weights, const Optimizer& optimizer, double min_value);

/// A float as C's "%a" writes it: equal text, equal bits.
std::string hex_float(float value);

}  // namespace tutti::examples
