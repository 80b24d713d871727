// A checkpoint as values: tensors, state, step. How it lies in one safetensors file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/autograd/variable_storage.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/checkpoint/safetensors.h"

namespace tutti::internal {

/// In a file, state lies in the metadata under "state/<name>", as JSON text; step and versions
/// beside it, and under "xxh3/<tensor>" a checksum of each tensor, under "xxh3" one of all the
/// rest.
struct CheckpointFile {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, Json> states;
  CheckpointInfo info;
};

/// What lies in a file: tensors on the host, all the rest among the metadata.
SafetensorsFile to_safetensors(const CheckpointFile& file);
std::string format_checkpoint_file(const CheckpointFile& file);
void write_checkpoint_file(const std::string& path, const CheckpointFile& file);

/// Errors of parse_safetensors(); kDataLoss for metadata that cannot be read and for checksums that
/// differ; kUnimplemented for a file of a later format. Files of format 1 have no checksums.
CheckpointFile parse_checkpoint_file(std::string_view bytes, const std::string& source);
/// The same for what was parsed already.
CheckpointFile from_safetensors(SafetensorsFile in, const std::string& source);

/// A file, or a version (version.h) when `path` is a folder.
CheckpointFile read_checkpoint(const std::string& path);

}  // namespace tutti::internal
