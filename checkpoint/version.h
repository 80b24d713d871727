// A version: a folder with safetensors files and the manifest that commits them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/checkpoint/checkpoint_file.h"
#include "tutti/checkpoint/folder.h"
#include "tutti/checkpoint/manifest.h"

namespace tutti::internal {

/// The name of the file of save number `sequence`. (Names, like manifests, have room for several
/// files.)
std::string part_name(std::int64_t sequence);
/// The sequence in such a name, of any number of files; nothing for other names.
std::optional<std::int64_t> sequence_of_part(std::string_view name);

/// Step, states and so on of `file`, without files and tensors.
Manifest describe(const CheckpointFile& file, std::int64_t sequence);

/// Writes the tensors into a file of the version's folder and sees that it is on the disk. Returns
/// `about` with this file and these tensors alone. Errors of Folder; then the file is gone again.
Manifest write_tensors(const Folder& folder, Manifest about,
                       const std::map<std::string, Tensor>& tensors);

/// Makes the version: from now on it is whole, even after a power cut. Every file must be on the
/// disk. Throws kDataLoss when rows are missing or occur twice, else errors of Folder.
void commit_version(const Folder& folder, const Manifest& manifest);

/// Nothing when the folder has no manifest: it was never committed. Throws kDataLoss for a damaged
/// one, kUnimplemented for a later format.
std::optional<Manifest> read_manifest(const Folder& folder);
/// The same; throws kNotFound where there is none.
Manifest require_manifest(const Folder& folder);

/// Throws kDataLoss unless every file is there and has its size.
void require_files(const Folder& folder, const Manifest& manifest);

/// All values; every byte is compared with its checksum. Throws kDataLoss naming file, offset and
/// tensor; kNotFound when the folder has no manifest.
CheckpointFile read_version(const Folder& folder);

/// All that is wrong with a version, one line each; empty: it is whole.
std::vector<std::string> find_damage(const Folder& folder, const Manifest& manifest);

}  // namespace tutti::internal
