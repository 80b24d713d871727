// A snapshot in pieces.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/checkpoint/snapshot_pieces.h"

#include <utility>

#include "tutti/checkpoint/checkpoint_file.h"

namespace tutti::internal {

SafetensorsLayout pieces_of(const CheckpointSnapshot& snapshot) {
  return lay_out_safetensors(to_safetensors(snapshot.values()));
}

ArrivingSnapshot::ArrivingSnapshot(std::string_view head, std::size_t num_bytes, std::string source)
    : source_(std::move(source)), header_(parse_safetensors_header(head, num_bytes, source_)) {
  for (const SafetensorsEntry& entry : header_.entries) {
    tensors_.emplace_back(entry.shape, entry.dtype, Device{});
  }
}

CheckpointSnapshot ArrivingSnapshot::finish() {
  SafetensorsFile file;
  file.metadata = std::move(header_.metadata);
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto* const first = reinterpret_cast<const char*>(tensors_[i].data());
    require_elements({first, tensors_[i].num_bytes()}, header_.entries[i], source_);
    file.tensors.push_back({header_.entries[i].name, tensors_[i].freeze()});
  }
  tensors_.clear();
  return CheckpointSnapshot(
      std::make_shared<const CheckpointFile>(from_safetensors(std::move(file), source_)));
}

}  // namespace tutti::internal
