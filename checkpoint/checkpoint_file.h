// Values of a checkpoint (tensors, state, step), their form in one safetensors file, and their
// transfer to other processes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors_types.h"
#include "tutti/autograd/variable_storage.h"
#include "tutti/checkpoint/checkpoint.h"

namespace tutti::internal {

/// Values of a checkpoint. In a file, state is stored in the metadata under "state/<name>", as JSON
/// text, next to the step and the versions; "xxh3/<tensor>" is a checksum of that tensor, and
/// "xxh3" is a checksum of everything else.
struct CheckpointFile {
  std::map<std::string, Tensor> tensors;
  /// This process's parts of tensors that are not in `tensors`. Only versions have parts.
  std::map<std::string, TensorPart> parts;
  std::map<std::string, Json> states;
  CheckpointInfo info;
};

/// Serializes a checkpoint file: the tensors as data, everything else as metadata.
std::string format_checkpoint_file(const CheckpointFile& file);

/// Parses the bytes of a file. Throws the same errors as parse_safetensors(), kDataLoss for
/// unreadable metadata and wrong checksums, and kUnimplemented for a later format. Files of format
/// 1 have no checksums.
CheckpointFile parse_checkpoint_file(std::string_view bytes, const std::string& source);

/// Reads a file, or a version (version.h) if `path` is a folder.
CheckpointFile read_checkpoint(const std::string& path);

/// Returns the error that `body` threw, or nullopt. std::bad_alloc becomes kResourceExhausted, and
/// exceptions of other types become kInternal.
std::optional<Error> error_of(const std::function<void()>& body);

/// Convert errors to JSON, which can be sent to other processes, and back.
Json json_of(const Error& error);
Error error_in(const Json& json);

/// Calls `read` in the writing process (options.writes). Returns its result, or throws its error,
/// in all processes; options.from_writer transfers it. Collective: every process must call it.
std::optional<CheckpointFile> read_by_writer(
    const std::function<std::optional<CheckpointFile>()>& read, const CheckpointOptions& options);

// Transfer of a snapshot in chunks from one process's memory to another's, without copying the
// whole snapshot.

/// Returns the pieces of Checkpoint::to_bytes(): the head of the file, and the tensors (on the
/// host) in the order in which the file stores them. The tensors share the snapshot's memory if
/// it is on the host.
SafetensorsLayout pieces_of(const CheckpointSnapshot& snapshot);

/// Receiver of a snapshot that arrives in chunks. Like the file reader, it checks sizes before it
/// allocates memory, and the checksums of the head and the tensors before it returns values. Not
/// thread-safe.
class ArrivingSnapshot {
 public:
  /// `num_bytes` is the size of the whole file, which `source` names in errors. Throws kDataLoss
  /// for a damaged head.
  ArrivingSnapshot(std::string_view head, std::size_t num_bytes, std::string source);
  /// Returns the tensors, in piece order, that the caller fills with the elements.
  std::span<const MutableTensor> tensors() const { return tensors_; }
  /// Returns the snapshot. Requires: all elements have been written. Throws kDataLoss, naming the
  /// tensor, if one is damaged.
  CheckpointSnapshot finish();

 private:
  const std::string source_;
  SafetensorsHeader header_;
  std::vector<MutableTensor> tensors_;
};

}  // namespace tutti::internal
