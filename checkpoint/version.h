// A version of a checkpoint on disk: safetensors files, state.json and the index that commits them.
// SPDX-License-Identifier: Apache-2.0
//
// The index is Hugging Face's model.safetensors.index.json. Its `weight_map` names the file of each
// tensor that is stored whole. Its `parts` names the files of each tensor that is split into ranges
// of elements. Its `metadata` contains the size and the XXH3-128 checksum of every other file. The
// index ends with its own checksum, is written last and is renamed into place: a folder without an
// index is not a version.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_file.h"
#include "checkpoint/folder.h"

namespace tutti::internal {

inline constexpr const char* kIndexName = "model.safetensors.index.json";
inline constexpr const char* kNewIndexName = "model.safetensors.index.json.tmp";  // uncommitted
/// File whose existence marked a version as committed in tutti's earlier format, which cannot be
/// read any more.
inline constexpr const char* kEarlierManifestName = "manifest.json";

/// Largest sequence number of a version; adding 1 to it does not overflow.
inline constexpr std::int64_t kMaxSequence = std::int64_t{1} << 62;

/// File of a version, other than its index.
struct IndexedFile {
  std::uint64_t num_bytes = 0;
  std::string xxh3;  // checksum of all its bytes, as `xxh128sum` prints it

  bool operator==(const IndexedFile&) const = default;
};

/// Elements [first, second) of a tensor, in row-major order.
using ElementRange = std::pair<std::int64_t, std::int64_t>;

/// Tensor that is stored as several ranges of its elements. Each range has shape [count] and is in
/// a separate file.
struct CutTensor {
  DType dtype = DType::kFloat32;
  Shape shape;                                      // shape of the whole tensor
  std::map<std::string, ElementRange> ranges = {};  // by file name

  bool operator==(const CutTensor&) const = default;
};

/// Contents of a version. Names and shapes are global: they do not depend on how many processes
/// saved the version.
struct VersionIndex {
  std::int64_t step = 0;
  std::int64_t sequence = 0;     // 1 for the first save into a folder; the largest is the newest
  std::uint64_t total_size = 0;  // size of all elements, in bytes
  std::string state_file;
  std::map<std::string, IndexedFile> files;
  std::map<std::string, std::string> weight_map;  // file name of each tensor
  std::map<std::string, CutTensor> parts;

  bool operator==(const VersionIndex&) const = default;
};

Json to_json(const VersionIndex& index);
/// Parses the output of to_json(), even for an incomplete index. Throws kInvalidArgument if values
/// of the index contradict each other.
VersionIndex index_in(const Json& json);

/// Returns the text of the object `json` with a checksum of that text as its last member.
std::string sealed(Json json);
std::string format_index(const VersionIndex& index);
/// Inverse of format_index(). `source` names the text in errors. Throws kDataLoss if the text is
/// damaged, truncated, inconsistent or not written by tutti, and kUnimplemented for another version
/// of the format.
VersionIndex parse_index(std::string_view text, const std::string& source);

/// Returns the name of tensor file `number` (counted from 0) out of `count`; `tag` precedes the
/// extension.
std::string tensor_file_name(int number, int count, const std::string& tag);

/// Writes and syncs the tensors and parts of `values` as file `name`. Returns an index of that file
/// alone. If Folder throws, removes the file and rethrows the error.
VersionIndex write_tensors(const Folder& folder, const std::string& name,
                           const CheckpointFile& values);
/// Adds the files in `more`. Throws kInvalidArgument if the two indexes have inconsistent entries
/// for the same tensor.
void add_files(VersionIndex& index, const VersionIndex& more);
/// Writes the info and states of `values` as index.state_file, then the index. Renaming the index
/// commits the version, which then survives a power cut. Returns the index. Requires: the tensor
/// files are synced. Throws kDataLoss if elements are missing or occur twice, kFailedPrecondition
/// if the index is too large to be read back, and otherwise Folder's errors.
VersionIndex commit_version(const Folder& folder, VersionIndex index, const CheckpointFile& values);

/// Returns nullopt if the folder has no index, because it was never committed. Throws kDataLoss for
/// an index that is damaged or not a regular file, and kUnimplemented for a version in a format
/// that this build cannot read, whether older or newer.
std::optional<VersionIndex> read_index(const Folder& folder);
/// Same as read_index(), but throws kNotFound if there is no index.
VersionIndex require_index(const Folder& folder);
/// Throws kDataLoss unless every file exists and has the size in the index.
void require_files(const Folder& folder, const VersionIndex& index);

/// Elements to read, by tensor. A part whose shape or type differs from that of the stored tensor
/// is ignored, and the whole tensor is read. The values of the parts are not used.
using WantedParts = std::map<std::string, TensorPart>;

/// Reads all tensors; for a tensor in `wanted`, returns only the wanted elements (as one value).
/// Does not open files whose elements are all unwanted; reads every other file completely and
/// verifies its checksum. Throws kDataLoss, naming the file, if one is damaged, and kNotFound if
/// the folder has no index.
CheckpointFile read_version(const Folder& folder, const WantedParts& wanted = {});

/// Returns the problems of a version, one line per damaged file; empty if there are none.
std::vector<std::string> find_damage(const Folder& folder, const VersionIndex& index);

/// Tensor of a version, without its values.
struct StoredTensor {
  DType dtype = DType::kFloat32;
  Shape shape;
  std::vector<std::string> files;
};
/// Reads the tensors of a version from its index and the headers of its files.
std::map<std::string, StoredTensor> tensors_in(const Folder& folder, const VersionIndex& index);
/// Returns the info and states of a version: a checkpoint without tensors.
CheckpointFile read_state(const Folder& folder, const VersionIndex& index);

/// Returns the head (length and JSON header) of a safetensors file, or as much of it as the file
/// contains.
std::string read_safetensors_head(const FileReader& file);

}  // namespace tutti::internal
