// Manifests as text, and manifests of several processes as one.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/checkpoint/manifest.h"

#include <algorithm>
#include <set>
#include <utility>

#include "tutti/checkpoint/manifest_text.h"
#include "tutti/checkpoint/safetensors_types.h"
#include "tutti/core/hash.h"

namespace tutti::internal {
namespace {

Json to_json(const std::map<std::string, Json>& states) {
  Json json = Json::object();
  for (const auto& [name, state] : states) json.append(name, state);
  return json;
}

Json to_json(const ManifestFile& file) {
  Json json = Json::object();
  json.set("name", file.name).set("bytes", file.num_bytes).set("head_bytes", file.head_bytes);
  json.set("head_checksum", file.head_checksum).set("checksum", file.checksum);
  return json;
}

Json to_json(const ManifestPiece& piece) {
  Json chunks = Json::array();
  for (const std::string& chunk : piece.chunks) chunks.push_back(chunk);
  Json json = Json::object();
  json.set("file", static_cast<std::int64_t>(piece.file));
  json.set("rows", Json::Array{piece.first_row, piece.first_row + piece.num_rows});
  json.set("chunks", std::move(chunks));
  return json;
}

Json to_json(const ManifestTensor& tensor) {
  Json shape = Json::array(), pieces = Json::array();
  for (const std::int64_t dim : tensor.shape) shape.push_back(dim);
  for (const ManifestPiece& piece : tensor.pieces) pieces.push_back(to_json(piece));
  Json json = Json::object();
  json.set("name", tensor.name).set("dtype", safetensors_name_of(tensor.dtype));
  json.set("shape", std::move(shape)).set("pieces", std::move(pieces));
  return json;
}

template <class Values>
Json list_of(const Values& values) {
  Json list = Json::array();
  for (const auto& value : values) list.push_back(to_json(value));
  return list;
}

Json to_json(const Manifest& manifest) {
  Json json = Json::object();
  json.set("format", kManifestFormat).set("version", kManifestVersion);
  json.set("sequence", manifest.sequence).set("step", manifest.step);
  json.set("tutti", manifest.tutti_version).set("numerics", manifest.numerics);
  json.set("hash", kManifestHash).set("chunk_bytes", manifest.chunk_bytes);
  json.set("about", manifest.about).set("states", to_json(manifest.states));
  json.set("files", list_of(manifest.files)).set("tensors", list_of(manifest.tensors));
  return json;
}

bool starts_before(const ManifestPiece& a, const ManifestPiece& b) {
  return std::pair(a.first_row, a.num_rows) < std::pair(b.first_row, b.num_rows);
}

void add_piece(Manifest& whole, const ManifestTensor& tensor, std::size_t file) {
  auto same = std::find_if(whole.tensors.begin(), whole.tensors.end(),
                           [&](const auto& other) { return other.name == tensor.name; });
  if (same == whole.tensors.end()) {
    whole.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, {}});
    same = std::prev(whole.tensors.end());
  } else if (same->dtype != tensor.dtype || same->shape != tensor.shape) {
    fail(ErrorCode::kInvalidArgument, "merge_manifests: tensor '", tensor.name, "': expected ",
         same->dtype, " ", same->shape, " from every process, got ", tensor.dtype, " ",
         tensor.shape);
  }
  for (ManifestPiece piece : tensor.pieces) {
    piece.file += file;
    same->pieces.push_back(std::move(piece));
  }
}

}  // namespace

std::int64_t num_rows(const Shape& shape) { return shape.rank() == 0 ? 1 : shape[0]; }

Shape shape_of_rows(const Shape& shape, std::int64_t count) {
  if (shape.rank() == 0) return shape;
  std::vector<std::int64_t> dims(shape.begin(), shape.end());
  dims[0] = count;
  return Shape(dims);
}

std::uint64_t bytes_of_elements(const Shape& shape, DType dtype) {
  return static_cast<std::uint64_t>(shape.num_elements()) * size_of(dtype);
}

std::uint64_t bytes_of_files(const Manifest& manifest) {
  std::uint64_t sum = 0;
  for (const ManifestFile& file : manifest.files) sum += file.num_bytes;
  return sum;
}

// The checksum covers all bytes but its own line, and that line has one form alone: no byte can
// change unseen.
std::string format_manifest(const Manifest& manifest) {
  std::string text = to_json(manifest).dump(1);
  TUTTI_CHECK(text.ends_with("\n}"), "format_manifest: expected an indented object");
  text.resize(text.size() - 2);
  Hasher hasher;
  hasher.update(text);
  return concat(text, kManifestTail, hasher.hex_digest(), kManifestEnd);
}

void require_whole(const Manifest& manifest, const std::string& source) {
  for (const ManifestTensor& tensor : manifest.tensors) {
    std::vector<ManifestPiece> pieces = tensor.pieces;
    std::sort(pieces.begin(), pieces.end(), starts_before);
    std::int64_t row = 0;
    for (const ManifestPiece& piece : pieces) {
      if (piece.first_row != row) {
        fail(ErrorCode::kDataLoss, source, ": tensor '", tensor.name, "': rows ",
             piece.first_row < row ? "occur twice" : "are missing", "; expected a piece from row ",
             row, ", got one from row ", piece.first_row);
      }
      row += piece.num_rows;
    }
    if (row != num_rows(tensor.shape) || pieces.empty()) {
      fail(ErrorCode::kDataLoss, source, ": tensor '", tensor.name, "': expected ",
           num_rows(tensor.shape), " rows, got ", row, " in ", pieces.size(), " pieces");
    }
  }
}

Manifest merge_manifests(const std::vector<Manifest>& parts) {
  TUTTI_CHECK(!parts.empty(), "merge_manifests: no parts");
  Manifest whole = parts[0];
  std::set<std::string> names = {};
  whole.files.clear();
  whole.tensors.clear();
  for (const Manifest& part : parts) {
    if (part.step != whole.step || part.sequence != whole.sequence ||
        part.chunk_bytes != whole.chunk_bytes) {
      fail(ErrorCode::kInvalidArgument, "merge_manifests: expected parts of one save (step ",
           whole.step, ", number ", whole.sequence, "), got step ", part.step, ", number ",
           part.sequence);
    }
    const std::size_t file = whole.files.size();
    for (const ManifestFile& other : part.files) {
      if (!names.insert(other.name).second) {
        fail(ErrorCode::kInvalidArgument, "merge_manifests: two processes wrote '", other.name,
             "'; expected a file of its own for each");
      }
      whole.files.push_back(other);
    }
    for (const ManifestTensor& tensor : part.tensors) add_piece(whole, tensor, file);
  }
  return whole;
}

}  // namespace tutti::internal
