// A version: a folder with safetensors files and the manifest that commits them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_file.h"
#include "checkpoint/folder.h"
#include "checkpoint/manifest.h"

namespace tutti::internal {

/// Which of a version's files: of each process that saves it one.
struct PartNumber {
  int index = 0;
  int count = 1;
};

/// The name of a file of save number `sequence`.
std::string part_name(std::int64_t sequence, PartNumber part = {});
/// The sequence in such a name, of any number of files; nothing for other names.
std::optional<std::int64_t> sequence_of_part(std::string_view name);

/// Step, states and so on of `file`, without files and tensors.
Manifest describe(const CheckpointFile& file, std::int64_t sequence);

/// Writes tensors and parts into a file of the version's folder and sees that it is on the disk.
/// Returns what describe() says with this file and what is in it. Errors of Folder; then the file
/// is gone again.
Manifest write_part(const Folder& folder, Manifest about, const CheckpointFile& file,
                    PartNumber part = {});

/// One manifest of those that write_part() returned, the first of which says the rest.
Manifest join_parts(const std::vector<Manifest>& parts);

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

/// Which elements of a tensor to read, if it has the same shape and type there: those of the part,
/// whose values do not count.
using WantedParts = std::map<std::string, TensorPart>;

/// All values, but of tensors in `wanted` the parts alone (as one value); every byte that is read
/// is compared with its checksum. Throws kDataLoss naming file, offset and tensor; kNotFound when
/// the folder has no manifest.
CheckpointFile read_version(const Folder& folder, const WantedParts& wanted = {});

/// All that is wrong with a version, one line each; empty: it is whole.
std::vector<std::string> find_damage(const Folder& folder, const Manifest& manifest);

}  // namespace tutti::internal
