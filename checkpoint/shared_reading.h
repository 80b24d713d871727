// Reading a checkpoint in one of several processes, for all of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>

#include "tutti/checkpoint/checkpoint_file.h"

namespace tutti::internal {

/// What `read` gives in the process that writes (options.writes): all get it through
/// options.from_writer, or throw the error that `read` threw there. Called by all of them.
std::optional<CheckpointFile> read_by_writer(
    const std::function<std::optional<CheckpointFile>()>& read, const CheckpointOptions& options);

}  // namespace tutti::internal
