// Messages of the model's network.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tests/strategy/parameter_server/protocol_model.h"

namespace tutti::testing {

/// "push of closure 1 attempt 2 to ps 0 ..."
std::string to_string(const ModelMessage& message);

/// What the coordinator has to ask of a server now.
ModelMessage control_message(const ModelState& state, int server);

/// What a task sends to a server.
ModelMessage push_message(const ModelState& state, const ModelTask& task, int server);

/// Whether it could change nothing any more, whenever it came.
bool is_void(const ModelOptions& options, const ModelState& state, const ModelMessage& message);

}  // namespace tutti::testing
