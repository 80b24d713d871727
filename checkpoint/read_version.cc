// Versions are read with every byte compared with its checksum.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "checkpoint/safetensors_types.h"
#include "checkpoint/version.h"
#include "core/hash.h"

namespace tutti::internal {
namespace {

/// Is told what is wrong. Throws to end the reading.
using Report = std::function<void(std::string)>;

/// Where a tensor's bytes from `first` on go.
struct Destination {
  std::uint64_t first = 0;
  MutableTensor values;
  std::uint64_t end() const { return first + values.num_bytes(); }
};
/// Of each tensor; an empty map: all is read and dropped.
using Destinations = std::map<std::string, Destination>;

struct PlacedPiece {
  const ManifestTensor* tensor = nullptr;
  const ManifestPiece* piece = nullptr;
  Shape shape() const { return shape_of(*piece, *tensor); }
  /// Of its first byte in the tensor.
  std::uint64_t first_byte() const {
    return static_cast<std::uint64_t>(first_element(*piece, *tensor)) * size_of(tensor->dtype);
  }
};

class PartReader {
 public:
  PartReader(const Folder& folder, const Manifest& manifest, std::size_t index,
             Destinations& destinations, const Report& report)
      : manifest_(manifest),
        file_(manifest.files[index]),
        reader_(folder.open_file(file_.name)),
        destinations_(destinations),
        report_(report) {
    for (const ManifestTensor& tensor : manifest.tensors) {
      for (const ManifestPiece& piece : tensor.pieces) {
        if (piece.file == index) pieces_[tensor.name] = {&tensor, &piece};
      }
    }
  }

  void read() {
    if (reader_.size() != file_.num_bytes) {
      return report_(concat(reader_.path(), ": the file is ",
                            reader_.size() < file_.num_bytes ? "cut" : "too long", "; expected ",
                            file_.num_bytes, " bytes, got ", reader_.size()));
    }
    const std::string head = reader_.read_text(0, file_.head_bytes);
    whole_.update(head);
    if (!compare(head, file_.head_checksum, 0, "the header")) return;
    const SafetensorsHeader header =
        parse_safetensors_header(head, file_.num_bytes, reader_.path());
    if (!agrees(header)) return;
    for (const SafetensorsEntry& entry : header.entries) read_piece(entry);
    if (destinations_.empty() && whole_.hex_digest() != file_.checksum && !damaged_) {
      report_(concat(reader_.path(), ": expected checksum ", file_.checksum, " of the file, got ",
                     whole_.hex_digest()));
    }
  }

 private:
  bool compare(std::string_view bytes, const std::string& checksum, std::uint64_t offset,
               const std::string& what) {
    const std::string actual = hash_of(bytes);
    if (actual == checksum) return true;
    damaged_ = true;
    report_(concat(reader_.path(), ": offset ", offset, ": ", what, " is damaged in bytes [",
                   offset, ", ", offset + bytes.size(), "); expected checksum ", checksum, ", got ",
                   actual));
    return false;
  }

  bool agrees(const SafetensorsHeader& header) {
    bool same = header.entries.size() == pieces_.size();
    for (const SafetensorsEntry& entry : header.entries) {
      const auto found = pieces_.find(entry.name);
      same = same && found != pieces_.end() && found->second.tensor->dtype == entry.dtype &&
             found->second.shape() == entry.shape;
      if (same) continue;
      report_(concat(reader_.path(), ": tensor '", entry.name, "' of ", entry.dtype, " ",
                     entry.shape, " is not what the manifest says"));
      return false;
    }
    if (!same) report_(concat(reader_.path(), ": tensors of the manifest are not in the file"));
    return same;
  }

  void read_piece(const SafetensorsEntry& entry) {
    const PlacedPiece& placed = pieces_.at(entry.name);
    std::size_t begin = 0;
    for (const std::string& checksum : placed.piece->chunks) {
      const std::uint64_t left = entry.end - entry.begin - begin;
      const auto size = static_cast<std::size_t>(std::min(left, manifest_.chunk_bytes));
      read_chunk(entry, begin, size, placed.first_byte() + begin, checksum);
      begin += size;
    }
  }

  /// `size` bytes from `begin` of the piece, those from `place` on of the tensor.
  void read_chunk(const SafetensorsEntry& entry, std::size_t begin, std::size_t size,
                  std::uint64_t place, const std::string& checksum) {
    const auto found = destinations_.find(entry.name);
    Destination* const to = found == destinations_.end() ? nullptr : &found->second;
    if (to && (place >= to->end() || place + size <= to->first)) return;
    const bool is_inside = to && place >= to->first && place + size <= to->end();
    const auto chunk =
        is_inside ? std::span(to->values.data() + (place - to->first), size) : scratch(size);
    reader_.read(entry.begin + begin, chunk);
    const std::string_view text(reinterpret_cast<const char*>(chunk.data()), chunk.size());
    if (destinations_.empty()) whole_.update(text);
    compare(text, checksum, entry.begin + begin, concat("tensor '", entry.name, "'"));
    if (entry.dtype == DType::kBool) require_bools(text, entry, begin);
    if (!to || is_inside) return;
    const std::uint64_t first = std::max(place, to->first);
    const std::uint64_t end = std::min(place + size, to->end());
    std::ranges::copy(chunk.subspan(first - place, end - first),
                      to->values.data() + (first - to->first));
  }

  void require_bools(std::string_view bytes, const SafetensorsEntry& entry, std::size_t begin) {
    const std::size_t bad = bytes.find_first_not_of(std::string_view("\0\1", 2));
    if (bad == std::string_view::npos) return;
    report_(concat(reader_.path(), ": offset ", entry.begin + begin + bad, ": tensor '", entry.name,
                   "' of type BOOL: expected 0 or 1, got ",
                   int{static_cast<unsigned char>(bytes[bad])}));
  }

  std::span<std::byte> scratch(std::size_t size) {
    if (scratch_.size() < size) scratch_.resize(size);
    return std::span(scratch_).first(size);
  }

  const Manifest& manifest_;
  const ManifestFile& file_;
  FileReader reader_;
  Destinations& destinations_;
  const Report& report_;
  std::map<std::string, PlacedPiece> pieces_;
  Hasher whole_;
  std::vector<std::byte> scratch_;
  bool damaged_ = false;
};

}  // namespace

std::optional<Manifest> read_manifest(const Folder& folder) {
  const std::optional<std::uint64_t> size = folder.size_of(kManifestName);
  if (!size) return std::nullopt;
  if (*size > kMaxManifestBytes) {
    fail(ErrorCode::kDataLoss, folder.path_of(kManifestName), ": expected at most ",
         kMaxManifestBytes, " bytes, got ", *size);
  }
  const FileReader reader = folder.open_file(kManifestName);
  Manifest manifest = parse_manifest(reader.read_text(0, static_cast<std::size_t>(*size)),
                                     folder.path_of(kManifestName));
  require_whole(manifest, folder.path_of(kManifestName));
  return manifest;
}

void require_files(const Folder& folder, const Manifest& manifest) {
  for (const ManifestFile& file : manifest.files) {
    const std::optional<std::uint64_t> size = folder.size_of(file.name);
    if (size == file.num_bytes) continue;
    fail(ErrorCode::kDataLoss, folder.path_of(file.name), ": expected a file of ", file.num_bytes,
         " bytes, got ",
         folder.is_link(file.name)
             ? "a symbolic link, which is not followed; copy the file itself there"
         : size ? concat(*size)
                : std::string("none"));
  }
}

Manifest require_manifest(const Folder& folder) {
  std::optional<Manifest> manifest = read_manifest(folder);
  if (manifest) return std::move(*manifest);
  fail(ErrorCode::kNotFound, "Checkpoint: '", folder.path(), "' has no ", kManifestName,
       ": it is no checkpoint, or one that was never finished; try another one");
}

namespace {

/// What is wanted of the tensor; nullptr: all of it.
const TensorPart* wanted_part(const ManifestTensor& tensor, const WantedParts& wanted) {
  const auto part = wanted.find(tensor.name);
  const bool is_part = part != wanted.end() && part->second.shape == tensor.shape &&
                       part->second.dtype == tensor.dtype;
  return is_part ? &part->second : nullptr;
}

Destination destination_of(const ManifestTensor& tensor, const TensorPart* part) {
  if (!part) return {0, MutableTensor(tensor.shape, tensor.dtype, Device{})};
  return {static_cast<std::uint64_t>(part->first) * size_of(tensor.dtype),
          MutableTensor({part->count()}, tensor.dtype, Device{})};
}

}  // namespace

CheckpointFile read_version(const Folder& folder, const WantedParts& wanted) {
  Manifest manifest = require_manifest(folder);
  require_files(folder, manifest);  // before memory is asked for
  Destinations destinations;
  for (const ManifestTensor& tensor : manifest.tensors) {
    destinations.emplace(tensor.name, destination_of(tensor, wanted_part(tensor, wanted)));
  }
  const Report refuse = [](std::string problem) {
    throw Error(ErrorCode::kDataLoss, std::move(problem));
  };
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    PartReader(folder, manifest, i, destinations, refuse).read();
  }
  CheckpointFile file;
  for (const ManifestTensor& tensor : manifest.tensors) {
    Tensor value = destinations.at(tensor.name).values.freeze();
    if (const TensorPart* const part = wanted_part(tensor, wanted)) {
      file.parts[tensor.name] = {tensor.name, tensor.shape, tensor.dtype, part->first, {value}};
    } else {
      file.tensors[tensor.name] = std::move(value);
    }
  }
  file.states = std::move(manifest.states);
  file.info = std::move(manifest.info);
  file.info.path = folder.path();
  return file;
}

std::vector<std::string> find_damage(const Folder& folder, const Manifest& manifest) {
  std::vector<std::string> problems;
  const Report note = [&](std::string problem) { problems.push_back(std::move(problem)); };
  Destinations none;
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    try {
      PartReader(folder, manifest, i, none, note).read();
    } catch (const Error& error) {
      note(error.message());
    }
  }
  return problems;
}

}  // namespace tutti::internal
