// A version: a folder with safetensors files and the manifest that commits them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/checkpoint/checkpoint_file.h"
#include "tutti/checkpoint/folder.h"
#include "tutti/checkpoint/manifest.h"

namespace tutti::internal {

/// Rows of a tensor that one process writes. `value` is the whole tensor unless it begins at
/// another row or has fewer of them than `shape`, the global one.
struct PartTensor {
  NamedTensor tensor;
  Shape shape;
  std::int64_t first_row = 0;
};

/// What process `index` of `count` writes of a version: a file of its own.
struct Part {
  int index = 0;
  int count = 1;
  std::vector<PartTensor> tensors;
};

std::string part_name(int index, int count, std::int64_t sequence);
/// The sequence in a name that part_name() made; nothing for other names.
std::optional<std::int64_t> sequence_of_part(std::string_view name);

/// The parts of `file` that a single process writes: everything.
Part whole_part(const CheckpointFile& file);
/// Step, states and so on of `file`, without files and tensors.
Manifest describe(const CheckpointFile& file, std::int64_t sequence);

/// Writes the file of a part into the version's folder and sees that it is on the disk. Returns
/// `about` with this file and these tensors alone: as text (format_manifest) it goes to the process
/// that commits. Errors of Folder; then the file is gone again.
Manifest write_part(const Folder& folder, Manifest about, const Part& part);

/// Makes the version: from now on it is whole, even after a power cut. Every part must be on the
/// disk. Throws kDataLoss when rows are missing or occur twice, else errors of Folder.
void commit_version(const Folder& folder, const Manifest& manifest);

/// Nothing when the folder has no manifest: it was never committed. Throws kDataLoss for a damaged
/// one, kUnimplemented for a later format.
std::optional<Manifest> read_manifest(const Folder& folder);

/// Throws kDataLoss unless every file is there and has its size.
void require_files(const Folder& folder, const Manifest& manifest);

/// All values; every byte is compared with its checksum. Throws kDataLoss naming file, offset and
/// tensor; kNotFound when the folder has no manifest.
CheckpointFile read_version(const Folder& folder);

/// All that is wrong with a version, one line each; empty: it is whole.
std::vector<std::string> find_damage(const Folder& folder, const Manifest& manifest);

}  // namespace tutti::internal
