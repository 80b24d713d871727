// A checkpoint as values: tensors, state, step. How it lies in one safetensors file, and how it
// gets from the process that reads it to others.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/autograd/variable_storage.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/checkpoint/safetensors_types.h"

namespace tutti::internal {

/// In a file, state lies in the metadata under "state/<name>", as JSON text; step and versions
/// beside it, and under "xxh3/<tensor>" a checksum of each tensor, under "xxh3" one of all the
/// rest.
struct CheckpointFile {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, Json> states;
  CheckpointInfo info;
};

/// The bytes of a file: tensors, all the rest among the metadata.
std::string format_checkpoint_file(const CheckpointFile& file);

/// Errors of parse_safetensors(); kDataLoss for metadata that cannot be read and for checksums that
/// differ; kUnimplemented for a file of a later format. Files of format 1 have no checksums.
CheckpointFile parse_checkpoint_file(std::string_view bytes, const std::string& source);

/// A file, or a version (version.h) when `path` is a folder.
CheckpointFile read_checkpoint(const std::string& path);

/// What `read` gives in the process that writes (options.writes): all get it through
/// options.from_writer, or throw the error that `read` threw there. Called by all of them.
std::optional<CheckpointFile> read_by_writer(
    const std::function<std::optional<CheckpointFile>()>& read, const CheckpointOptions& options);

}  // namespace tutti::internal
