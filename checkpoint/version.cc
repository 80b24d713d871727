// Versions: written with the manifest last; read with every byte compared with its checksum.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <utility>

#include "tutti/checkpoint/safetensors_types.h"
#include "tutti/checkpoint/version.h"
#include "tutti/core/hash.h"
#include "tutti/tensor/numerics.h"

namespace tutti::internal {

// Writing: tensors first, the manifest last.

namespace {

constexpr std::string_view kPart = "part_";
constexpr std::string_view kOf = "_of_";
constexpr std::string_view kSave = ".save_";
constexpr std::string_view kSuffix = ".safetensors";

/// Writes and hashes a piece at a time, so that both passes find it in the cache.
std::vector<std::string> write_chunks(FileWriter& writer, Hasher& file,
                                      std::span<const std::byte> bytes, std::size_t chunk_bytes) {
  std::vector<std::string> checksums;
  while (!bytes.empty()) {
    const auto chunk = bytes.first(std::min(bytes.size(), chunk_bytes));
    checksums.push_back(hash_of(chunk));
    file.update(chunk);
    writer.write(chunk);
    bytes = bytes.subspan(chunk.size());
  }
  return checksums;
}

}  // namespace

std::string part_name(std::int64_t sequence) {
  return concat(kPart, 0, kOf, 1, kSave, sequence, kSuffix);
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

Manifest write_tensors(const Folder& folder, Manifest about,
                       const std::map<std::string, Tensor>& tensors) {
  SafetensorsFile content;
  content.metadata = {{"step", concat(about.info.step)},
                      {"tutti_version", about.info.tutti_version}};
  for (const auto& [name, tensor] : tensors) content.tensors.push_back({name, tensor});
  const SafetensorsLayout layout = lay_out_safetensors(content);
  ManifestFile file;
  file.name = part_name(about.info.sequence);
  file.num_bytes = layout.num_bytes;
  file.head_bytes = layout.head.size();
  file.head_checksum = hash_of(layout.head);
  about.tensors.clear();
  FileWriter writer = folder.create_file(file.name, file.num_bytes);
  writer.reserve();
  Hasher hasher;
  hasher.update(layout.head);
  writer.write(layout.head);
  for (const auto& [name, tensor] : layout.tensors) {
    ManifestPiece piece;
    piece.num_rows = num_rows(tensor.shape());
    piece.chunks = write_chunks(writer, hasher, tensor.bytes(), about.chunk_bytes);
    about.tensors.push_back({name, tensor.dtype(), tensor.shape(), {std::move(piece)}});
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

// Reading.

namespace {

/// Is told what is wrong. Throws to end the reading.
using Report = std::function<void(std::string)>;

/// Where the elements of a tensor go; an empty map: they are read and dropped.
using Destinations = std::map<std::string, MutableTensor>;

struct PlacedPiece {
  const ManifestTensor* tensor = nullptr;
  const ManifestPiece* piece = nullptr;
  Shape shape() const { return shape_of_rows(tensor->shape, piece->num_rows); }
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
    const std::span<std::byte> elements = destination_of(placed, entry.end - entry.begin);
    std::size_t begin = 0;
    for (const std::string& checksum : placed.piece->chunks) {
      const std::uint64_t left = entry.end - entry.begin - begin;
      const auto size = static_cast<std::size_t>(std::min(left, manifest_.chunk_bytes));
      const auto chunk = elements.empty() ? scratch(size) : elements.subspan(begin, size);
      reader_.read(entry.begin + begin, chunk);
      const std::string_view text(reinterpret_cast<const char*>(chunk.data()), chunk.size());
      if (destinations_.empty()) whole_.update(text);
      compare(text, checksum, entry.begin + begin, concat("tensor '", entry.name, "'"));
      if (entry.dtype == DType::kBool) require_bools(text, entry, begin);
      begin += size;
    }
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

  std::span<std::byte> destination_of(const PlacedPiece& placed, std::size_t size) {
    const auto found = destinations_.find(placed.tensor->name);
    if (found == destinations_.end() || size == 0) return {};
    const std::size_t rows = static_cast<std::size_t>(num_rows(placed.tensor->shape));
    const std::size_t row_bytes = found->second.num_bytes() / rows;
    const auto first = static_cast<std::size_t>(placed.piece->first_row) * row_bytes;
    return {found->second.data() + first, size};
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
         " bytes, got ", size ? concat(*size) : std::string("none"));
  }
}

Manifest require_manifest(const Folder& folder) {
  std::optional<Manifest> manifest = read_manifest(folder);
  if (manifest) return std::move(*manifest);
  fail(ErrorCode::kNotFound, "Checkpoint: '", folder.path(), "' has no ", kManifestName,
       ": it is no checkpoint, or one that was never finished; try another one");
}

CheckpointFile read_version(const Folder& folder) {
  Manifest manifest = require_manifest(folder);
  require_files(folder, manifest);  // before memory is asked for
  Destinations destinations;
  for (const ManifestTensor& tensor : manifest.tensors) {
    destinations.emplace(tensor.name, MutableTensor(tensor.shape, tensor.dtype, Device{}));
  }
  const Report refuse = [](std::string problem) {
    throw Error(ErrorCode::kDataLoss, std::move(problem));
  };
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    PartReader(folder, manifest, i, destinations, refuse).read();
  }
  CheckpointFile file;
  for (auto& [name, tensor] : destinations) file.tensors[name] = tensor.freeze();
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
