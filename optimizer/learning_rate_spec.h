// Learning-rate schedules by name: for configuration files and command lines.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tutti/optimizer/learning_rate_schedule.h"

namespace tutti {

/// The schedule called `name` (learning_rate_schedule_names()) with its options by their names;
/// those that are left out have their defaults, flags are 0 or 1:
/// `make_learning_rate("cosine_decay",
/// {{"initial_learning_rate", 0.1}, {"decay_steps", 1000}})`. Throws kInvalidArgument listing the
/// names, or the options that `name` has.
LearningRate make_learning_rate(const std::string& name,
                                const std::map<std::string, double>& options);

/// In alphabetical order.
std::vector<std::string> learning_rate_schedule_names();

}  // namespace tutti
