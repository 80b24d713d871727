// The manifest of a version: what it holds, in which files, and the checksum of every byte.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/checkpoint/checkpoint.h"
#include "tutti/core/json.h"
#include "tutti/tensor/dtype.h"
#include "tutti/tensor/shape.h"

namespace tutti::internal {

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kNewManifestName = "manifest.json.tmp";  // until it is committed
inline constexpr std::size_t kMaxManifestBytes = 256u << 20;
/// How many bytes of a tensor have a checksum of their own.
inline constexpr std::uint64_t kDefaultChunkBytes = 1u << 20;

// Words of the text.
inline constexpr std::string_view kManifestFormat = "tutti checkpoint";
/// 1 where all pieces are rows; 2 where some are ranges of elements.
inline constexpr std::int64_t kNewestManifestVersion = 2;
inline constexpr std::string_view kManifestHash = "xxh3-128";
/// Before and after the checksum at the end of the text.
inline constexpr std::string_view kManifestTail = ",\n \"checksum\": \"";
inline constexpr std::string_view kManifestEnd = "\"\n}\n";
inline constexpr std::size_t kChecksumDigits = 32;

/// A safetensors file of the version. Checksums are XXH3-128 (32 hexadecimal digits, as xxh128sum
/// prints them). The head is what stands before the elements.
struct ManifestFile {
  std::string name;
  std::uint64_t num_bytes = 0;
  std::uint64_t head_bytes = 0;
  std::string head_checksum;
  std::string checksum;  // of the whole file

  bool operator==(const ManifestFile&) const = default;
};

/// What a piece of a tensor counts: rows along axis 0 (a scalar has one; in the file [count, ...]),
/// or elements in row-major order (in the file [count]).
enum class PieceUnit { kRows, kElements };

/// [first, first + count) of a tensor, in file number `file` under the tensor's name. `chunks` has
/// a checksum for each chunk_bytes.
struct ManifestPiece {
  std::size_t file = 0;
  PieceUnit unit = PieceUnit::kRows;
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::vector<std::string> chunks = {};

  bool operator==(const ManifestPiece&) const = default;
};

/// Name and shape are global: they say nothing about who held which part.
struct ManifestTensor {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape shape;
  std::vector<ManifestPiece> pieces;

  bool operator==(const ManifestTensor&) const = default;
};

struct Manifest {
  /// Without path. Its sequence is 1 for the first version of a folder; each save has the next
  /// number: the largest is the newest.
  CheckpointInfo info;
  std::map<std::string, Json> states;
  std::uint64_t chunk_bytes = kDefaultChunkBytes;
  std::vector<ManifestFile> files;
  std::vector<ManifestTensor> tensors;

  bool operator==(const Manifest&) const = default;
};

/// How many of `unit` a tensor of this shape has.
std::int64_t count_of(PieceUnit unit, const Shape& shape);
/// In its file.
Shape shape_of(const ManifestPiece& piece, const ManifestTensor& tensor);
/// The number of the tensor's element with which the piece begins.
std::int64_t first_element(const ManifestPiece& piece, const ManifestTensor& tensor);
std::uint64_t bytes_of_elements(const Shape& shape, DType dtype);
/// The files' bytes together.
std::uint64_t bytes_of_files(const Manifest& manifest);

/// JSON whose last member is the checksum of all that stands before it.
std::string format_manifest(const Manifest& manifest);

/// The inverse. `source` names the text in errors: kDataLoss for anything damaged, torn or
/// contradictory; kUnimplemented for a later format. Pieces that are missing are not noticed: see
/// require_whole().
Manifest parse_manifest(std::string_view text, const std::string& source);

/// Throws kDataLoss unless the pieces of every tensor are all its rows, each once.
void require_whole(const Manifest& manifest, const std::string& source);

}  // namespace tutti::internal
