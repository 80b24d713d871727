// File written by --metrics-json: losses, speed and hashes of a run.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>

#include "examples/common/example_options.h"
#include "tutti/autograd/variable.h"
#include "tutti/model/training/training_session.h"

namespace tutti::examples {

/// Returns a record that stores the losses if --metrics-json is given.
TrainingRecord make_record(const ExampleOptions& options);

/// Writes one JSON object to the --metrics-json file, if that flag is given. `slots` are the
/// optimizer's state.
void write_metrics(const ExampleOptions& options, const TrainingRecord& record, double accuracy,
                   Strategy& strategy, std::span<const Variable> weights,
                   std::span<const Variable> slots);

/// Returns the options for a session of a custom training loop.
TrainingSessionOptions session_options(const ExampleOptions& options);

/// Ends the session and writes the --metrics-json file. Returns the exit code of the session, or 1
/// if session.last_value() is below `min_value`.
int finish(TrainingSession& session, const ExampleOptions& options, Strategy& strategy,
           std::span<const Variable> weights, const Optimizer& optimizer, double min_value);

/// Formats a float as C's "%a" does, so that equal strings mean equal bits.
std::string hex_float(float value);

}  // namespace tutti::examples
