// A checkpoint as values: tensors, state, step. How it lies in one safetensors file, and how it
// gets from the process that has it to others.
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

/// In a file, state lies in the metadata under "state/<name>", as JSON text; step and versions
/// beside it, and under "xxh3/<tensor>" a checksum of each tensor, under "xxh3" one of all the
/// rest.
struct CheckpointFile {
  std::map<std::string, Tensor> tensors;
  /// Of tensors that are not in `tensors`, what this process has of them. In versions alone.
  std::map<std::string, TensorPart> parts;
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

/// The error that left `body`; nothing when none did. Exceptions of other types become kInternal,
/// std::bad_alloc kResourceExhausted.
std::optional<Error> error_of(const std::function<void()>& body);

/// An error as JSON, which goes to other processes, and the inverse.
Json json_of(const Error& error);
Error error_in(const Json& json);

/// What `read` gives in the process that writes (options.writes): all get it through
/// options.from_writer, or throw the error that `read` threw there. Called by all of them.
std::optional<CheckpointFile> read_by_writer(
    const std::function<std::optional<CheckpointFile>()>& read, const CheckpointOptions& options);

// A snapshot in pieces, to go from one process's memory into another's without being joined to one
// text.

/// The pieces of Checkpoint::to_bytes(): the head of the file, and the tensors in the order of
/// their elements, on the host. They share the snapshot's memory where that is the host's.
SafetensorsLayout pieces_of(const CheckpointSnapshot& snapshot);

/// The other end. Nothing is believed, as in files: sizes are compared before memory is taken,
/// checksums of head and tensors before anything is given out. One thread.
class ArrivingSnapshot {
 public:
  /// `num_bytes`: of the whole file. `source` names it in errors: kDataLoss for a head that is
  /// damaged.
  ArrivingSnapshot(std::string_view head, std::size_t num_bytes, std::string source);
  /// Where the elements are to be written, in the order of the pieces.
  std::span<const MutableTensor> tensors() const { return tensors_; }
  /// When all of them are there; once. kDataLoss naming a tensor that is damaged.
  CheckpointSnapshot finish();

 private:
  const std::string source_;
  SafetensorsHeader header_;
  std::vector<MutableTensor> tensors_;
};

}  // namespace tutti::internal
