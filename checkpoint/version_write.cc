// Writing versions: parts first, the manifest last.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <utility>

#include "tutti/checkpoint/safetensors_types.h"
#include "tutti/checkpoint/version.h"
#include "tutti/core/hash.h"
#include "tutti/tensor/numerics.h"

namespace tutti::internal {
namespace {

constexpr std::string_view kPart = "part_";
constexpr std::string_view kOf = "_of_";
constexpr std::string_view kSave = ".save_";
constexpr std::string_view kSuffix = ".safetensors";

std::string checksum_of(std::string_view text) {
  Hasher hasher;
  hasher.update(text);
  return hasher.hex_digest();
}

/// Writes and hashes a piece at a time, so that both passes find it in the cache.
std::vector<std::string> write_chunks(FileWriter& writer, Hasher& file,
                                      std::span<const std::byte> bytes, std::size_t chunk_bytes) {
  std::vector<std::string> checksums;
  while (!bytes.empty()) {
    const auto chunk = bytes.first(std::min(bytes.size(), chunk_bytes));
    Hasher hasher;
    hasher.update(chunk);
    checksums.push_back(hasher.hex_digest());
    file.update(chunk);
    writer.write(chunk);
    bytes = bytes.subspan(chunk.size());
  }
  return checksums;
}

SafetensorsFile safetensors_of(const Part& part, const Manifest& about) {
  SafetensorsFile file;
  file.metadata = {{"step", concat(about.step)}, {"tutti_version", about.tutti_version}};
  for (const PartTensor& tensor : part.tensors) file.tensors.push_back(tensor.tensor);
  return file;
}

const PartTensor& find(const Part& part, const std::string& name) {
  const auto found = std::find_if(part.tensors.begin(), part.tensors.end(),
                                  [&](const PartTensor& t) { return t.tensor.name == name; });
  TUTTI_CHECK(found != part.tensors.end(), "write_part: no tensor '", name, "'");
  return *found;
}

ManifestTensor describe_tensor(const PartTensor& tensor, std::vector<std::string> chunks) {
  const Shape& shape = tensor.tensor.value.shape();
  ManifestPiece piece;
  piece.first_row = tensor.first_row;
  piece.num_rows = num_rows(shape);
  piece.chunks = std::move(chunks);
  if (shape != shape_of_rows(tensor.shape, piece.num_rows) || piece.first_row < 0 ||
      piece.first_row + piece.num_rows > num_rows(tensor.shape)) {
    fail(ErrorCode::kInvalidArgument, "write_part: tensor '", tensor.tensor.name,
         "': expected rows of ", tensor.shape, ", got ", shape, " from row ", piece.first_row);
  }
  return {tensor.tensor.name, tensor.tensor.value.dtype(), tensor.shape, {std::move(piece)}};
}

}  // namespace

std::string part_name(int index, int count, std::int64_t sequence) {
  return concat(kPart, index, kOf, count, kSave, sequence, kSuffix);
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

Part whole_part(const CheckpointFile& file) {
  Part part;
  for (const auto& [name, tensor] : file.tensors) {
    part.tensors.push_back({{name, tensor}, tensor.shape(), 0});
  }
  return part;
}

Manifest describe(const CheckpointFile& file, std::int64_t sequence) {
  Manifest manifest;
  manifest.step = file.info.step;
  manifest.sequence = sequence;
  manifest.tutti_version = TUTTI_VERSION;
  manifest.numerics = numerics_fingerprint();
  manifest.about = file.info.about;
  manifest.states = file.states;
  return manifest;
}

Manifest write_part(const Folder& folder, Manifest about, const Part& part) {
  const SafetensorsLayout layout = lay_out_safetensors(safetensors_of(part, about));
  ManifestFile file;
  file.name = part_name(part.index, part.count, about.sequence);
  file.num_bytes = layout.num_bytes;
  file.head_bytes = layout.head.size();
  file.head_checksum = checksum_of(layout.head);
  about.tensors.clear();
  FileWriter writer = folder.create_file(file.name, file.num_bytes);
  writer.reserve();
  Hasher hasher;
  hasher.update(layout.head);
  writer.write(layout.head);
  for (const NamedTensor& tensor : layout.tensors) {
    std::vector<std::string> chunks =
        write_chunks(writer, hasher, tensor.value.bytes(), about.chunk_bytes);
    about.tensors.push_back(describe_tensor(find(part, tensor.name), std::move(chunks)));
  }
  writer.finish();
  file.checksum = hasher.hex_digest();
  about.files = {std::move(file)};
  return about;
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
