// A checkpoint as values: tensors, state, step. How it lies in a safetensors file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tutti/autograd/variable_storage.h"
#include "tutti/checkpoint/checkpoint.h"

namespace tutti::internal {

/// State lies in the metadata under "state/<name>", as JSON text; step and versions beside it.
struct CheckpointFile {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, Json> states;
  CheckpointInfo info;
};

void write_checkpoint_file(const std::string& path, const CheckpointFile& file);

/// Errors of read_safetensors(); kDataLoss for metadata that cannot be read; kUnimplemented for a
/// file of a later format.
CheckpointFile read_checkpoint_file(const std::string& path);

}  // namespace tutti::internal
