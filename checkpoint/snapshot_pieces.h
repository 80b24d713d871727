// A snapshot in pieces, to go from one process's memory into another's without being joined to one
// text.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tutti/checkpoint/checkpoint.h"
#include "tutti/checkpoint/safetensors_types.h"

namespace tutti::internal {

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
