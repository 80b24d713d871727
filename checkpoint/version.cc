// Versions are written with the manifest last.
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/version.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <utility>

#include "checkpoint/safetensors_types.h"
#include "core/hash.h"
#include "tutti/tensor/numerics.h"

namespace tutti::internal {

// Writing: tensors first, the manifest last.

namespace {

constexpr std::string_view kPart = "part_";
constexpr std::string_view kOf = "_of_";
constexpr std::string_view kSave = ".save_";
constexpr std::string_view kSuffix = ".safetensors";

/// Writes what it is given, and hashes it in chunks and in the file's hash, a chunk at a time, so
/// that all find it in the cache.
class ChunkWriter {
 public:
  ChunkWriter(FileWriter& writer, Hasher& file, std::size_t chunk_bytes)
      : writer_(writer), file_(file), chunk_bytes_(chunk_bytes) {}

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto next = bytes.first(std::min(bytes.size(), chunk_bytes_ - filled_));
      chunk_.update(next);
      file_.update(next);
      writer_.write(next);
      filled_ += next.size();
      bytes = bytes.subspan(next.size());
      if (filled_ == chunk_bytes_) end_chunk();
    }
  }

  /// Of all that was written. Once.
  std::vector<std::string> checksums() {
    if (filled_ > 0) end_chunk();
    return std::move(checksums_);
  }

 private:
  void end_chunk() {
    checksums_.push_back(chunk_.hex_digest());
    chunk_ = Hasher();
    filled_ = 0;
  }

  FileWriter& writer_;
  Hasher& file_;
  const std::size_t chunk_bytes_;
  Hasher chunk_;
  std::size_t filled_ = 0;
  std::vector<std::string> checksums_;
};

/// A tensor, or a part of one, as it lies in the file.
TensorPart whole_of(const std::string& name, const Tensor& value) {
  return {name, value.shape(), value.dtype(), 0, {value}};
}

/// A part that is all lies there like any tensor: as rows, which every reader knows.
ManifestTensor describe(const TensorPart& part) {
  ManifestPiece piece;
  piece.unit = part.is_whole() ? PieceUnit::kRows : PieceUnit::kElements;
  piece.first = part.is_whole() ? 0 : part.first;
  piece.count = part.is_whole() ? count_of(PieceUnit::kRows, part.shape) : part.count();
  return {part.name, part.dtype, part.shape, {std::move(piece)}};
}

std::map<std::string, TensorPart> parts_of(const CheckpointFile& file) {
  std::map<std::string, TensorPart> parts = file.parts;
  for (const auto& [name, tensor] : file.tensors) parts.emplace(name, whole_of(name, tensor));
  return parts;
}

}  // namespace

std::string part_name(std::int64_t sequence, PartNumber part) {
  return concat(kPart, part.index, kOf, part.count, kSave, sequence, kSuffix);
}

std::optional<std::int64_t> sequence_of_part(std::string_view name) {
  const auto take_number = [&]() -> std::int64_t {
    std::int64_t number = -1;
    const auto result = std::from_chars(name.data(), name.data() + name.size(), number);
    name.remove_prefix(static_cast<std::size_t>(result.ptr - name.data()));
    return result.ec == std::errc() ? number : -1;
  };
  const auto take = [&](std::string_view word) {
    const bool there = name.starts_with(word);
    if (there) name.remove_prefix(word.size());
    return there;
  };
  const bool begins =
      take(kPart) && take_number() >= 0 && take(kOf) && take_number() > 0 && take(kSave);
  const std::int64_t sequence = begins ? take_number() : -1;
  return sequence > 0 && name == kSuffix ? std::optional(sequence) : std::nullopt;
}

Manifest describe(const CheckpointFile& file, std::int64_t sequence) {
  Manifest manifest;
  manifest.info = {file.info.step, TUTTI_VERSION, numerics_fingerprint(), sequence, "",
                   file.info.about};
  manifest.states = file.states;
  return manifest;
}

Manifest write_part(const Folder& folder, Manifest about, const CheckpointFile& values,
                    PartNumber part) {
  const std::map<std::string, TensorPart> parts = parts_of(values);
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, each] : parts) {
    const ManifestTensor tensor = describe(each);
    entries.push_back({name, each.dtype, shape_of(tensor.pieces[0], tensor)});
  }
  const std::string head = format_safetensors_head(
      {{"step", concat(about.info.step)}, {"tutti_version", about.info.tutti_version}}, entries);
  ManifestFile file;
  file.name = part_name(about.info.sequence, part);
  file.num_bytes = entries.empty() ? head.size() : entries.back().end;
  file.head_bytes = head.size();
  file.head_checksum = hash_of(head);
  about.tensors.clear();
  FileWriter writer = folder.create_file(file.name, file.num_bytes);
  writer.reserve();
  Hasher hasher;
  hasher.update(head);
  writer.write(head);
  for (const SafetensorsEntry& entry : entries) {
    ChunkWriter chunks(writer, hasher, about.chunk_bytes);
    for (const Tensor& value : parts.at(entry.name).values)
      chunks.write(value.to(Device{}).bytes());
    about.tensors.push_back(describe(parts.at(entry.name)));
    about.tensors.back().pieces[0].chunks = chunks.checksums();
  }
  writer.finish();
  file.checksum = hasher.hex_digest();
  about.files = {std::move(file)};
  return about;
}

Manifest join_parts(const std::vector<Manifest>& parts) {
  Manifest whole = parts.front();
  whole.files.clear();
  whole.tensors.clear();
  std::map<std::string, std::size_t> places;
  for (const Manifest& part : parts) {
    for (ManifestTensor tensor : part.tensors) {
      for (ManifestPiece& piece : tensor.pieces) piece.file += whole.files.size();
      const auto [place, is_new] = places.emplace(tensor.name, whole.tensors.size());
      if (is_new) {
        whole.tensors.push_back(std::move(tensor));
        continue;
      }
      ManifestTensor& same = whole.tensors[place->second];
      if (same.shape != tensor.shape || same.dtype != tensor.dtype) {
        fail(ErrorCode::kInvalidArgument, "Checkpoint: '", tensor.name, "' is ", same.dtype, " ",
             same.shape, " in ", whole.files[same.pieces[0].file].name, " and ", tensor.dtype, " ",
             tensor.shape, " in ", part.files.front().name,
             "; expected the same variables in all processes");
      }
      std::ranges::move(tensor.pieces, std::back_inserter(same.pieces));
    }
    std::ranges::copy(part.files, std::back_inserter(whole.files));
  }
  return whole;
}

void commit_version(const Folder& folder, const Manifest& manifest) {
  require_whole(manifest, folder.path_of(kManifestName));
  const std::string text = format_manifest(manifest);
  FileWriter writer = folder.create_file(kNewManifestName, text.size());
  writer.write(text);
  writer.finish();
  folder.sync();  // the names of the parts, before the manifest names them
  folder.rename(kNewManifestName, kManifestName);
  folder.sync();
}

}  // namespace tutti::internal
