// Manifests as text: written and read.
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/manifest.h"

#include <algorithm>
#include <set>
#include <utility>

#include "checkpoint/folder.h"
#include "checkpoint/safetensors_types.h"
#include "core/hash.h"

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

constexpr const char* name_of(PieceUnit unit) {
  return unit == PieceUnit::kRows ? "rows" : "elements";
}

Json to_json(const ManifestPiece& piece) {
  Json json = Json::object();
  json.set("file", static_cast<std::int64_t>(piece.file));
  json.set(name_of(piece.unit), Json::Array{piece.first, piece.first + piece.count});
  json.set("chunks", Json::array_of(piece.chunks));
  return json;
}

Json to_json(const ManifestTensor& tensor) {
  Json pieces = Json::array();
  for (const ManifestPiece& piece : tensor.pieces) pieces.push_back(to_json(piece));
  Json json = Json::object();
  json.set("name", tensor.name).set("dtype", safetensors_name_of(tensor.dtype));
  json.set("shape", Json::array_of(tensor.shape)).set("pieces", std::move(pieces));
  return json;
}

template <class Values>
Json list_of(const Values& values) {
  return Json::array_of(values, [](const auto& value) { return to_json(value); });
}

/// The first that has pieces of this kind: earlier programs read all that they can.
std::int64_t version_of(const Manifest& manifest) {
  const auto has_elements = [](const ManifestTensor& tensor) {
    return std::ranges::find(tensor.pieces, PieceUnit::kElements, &ManifestPiece::unit) !=
           tensor.pieces.end();
  };
  return std::ranges::any_of(manifest.tensors, has_elements) ? 2 : 1;
}

Json to_json(const Manifest& manifest) {
  Json json = Json::object();
  json.set("format", kManifestFormat).set("version", version_of(manifest));
  json.set("sequence", manifest.info.sequence).set("step", manifest.info.step);
  json.set("tutti", manifest.info.tutti_version).set("numerics", manifest.info.numerics);
  json.set("hash", kManifestHash).set("chunk_bytes", manifest.chunk_bytes);
  json.set("about", manifest.info.about).set("states", to_json(manifest.states));
  json.set("files", list_of(manifest.files)).set("tensors", list_of(manifest.tensors));
  return json;
}

bool starts_before(const ManifestPiece& a, const ManifestPiece& b) {
  return std::pair(a.first, a.count) < std::pair(b.first, b.count);
}

}  // namespace

std::int64_t count_of(PieceUnit unit, const Shape& shape) {
  if (unit == PieceUnit::kElements) return shape.num_elements();
  return shape.rank() == 0 ? 1 : shape[0];
}

Shape shape_of(const ManifestPiece& piece, const ManifestTensor& tensor) {
  if (piece.unit == PieceUnit::kElements) return {piece.count};
  return tensor.shape.rank() == 0 ? tensor.shape : tensor.shape.with_dim(0, piece.count);
}

std::int64_t first_element(const ManifestPiece& piece, const ManifestTensor& tensor) {
  const std::int64_t units = count_of(piece.unit, tensor.shape);
  return units == 0 ? 0 : piece.first * (tensor.shape.num_elements() / units);
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
  return concat(text, kManifestTail, hash_of(text), kManifestEnd);
}

void require_whole(const Manifest& manifest, const std::string& source) {
  for (const ManifestTensor& tensor : manifest.tensors) {
    std::vector<ManifestPiece> pieces = tensor.pieces;
    std::sort(pieces.begin(), pieces.end(), starts_before);
    const PieceUnit unit = pieces.empty() ? PieceUnit::kRows : pieces.front().unit;
    std::int64_t next = 0;
    for (const ManifestPiece& piece : pieces) {
      if (piece.unit != unit) {
        fail(ErrorCode::kDataLoss, source, ": tensor '", tensor.name, "': expected pieces of ",
             name_of(unit), ", got one of ", name_of(piece.unit));
      }
      if (piece.first != next) {
        fail(ErrorCode::kDataLoss, source, ": tensor '", tensor.name, "': ", name_of(unit),
             piece.first < next ? " occur twice" : " are missing", "; expected a piece from ", next,
             ", got one from ", piece.first);
      }
      next += piece.count;
    }
    if (next != count_of(unit, tensor.shape) || pieces.empty()) {
      fail(ErrorCode::kDataLoss, source, ": tensor '", tensor.name, "': expected ",
           count_of(unit, tensor.shape), " ", name_of(unit), ", got ", next, " in ", pieces.size(),
           " pieces");
    }
  }
}

// Reading. The checksum comes first, but a right one proves nothing about the author: every number
// is compared with the others before anything is made from it.

namespace {

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  fail(ErrorCode::kInvalidArgument, parts...);
}

/// The text without its checksum, which must be right.
void require_checksum(std::string_view text, const std::string& source) {
  const std::size_t tail = kManifestTail.size() + kChecksumDigits + kManifestEnd.size();
  const std::size_t at = text.size() < tail ? 0 : text.size() - tail;
  const bool has_form = text.size() >= tail && text.substr(at).starts_with(kManifestTail) &&
                        text.ends_with(kManifestEnd);
  if (!has_form) {
    fail(ErrorCode::kDataLoss, source, ": offset ", at,
         ": the manifest is cut or damaged; expected its checksum at the end of ", text.size(),
         " bytes, got something else");
  }
  const std::string actual = hash_of(text.substr(0, at));
  const std::string_view stated = text.substr(at + kManifestTail.size(), kChecksumDigits);
  if (actual != stated) {
    fail(ErrorCode::kDataLoss, source, ": the manifest is damaged; expected checksum ", stated,
         ", got ", actual, " of bytes 0 to ", at);
  }
}

std::uint64_t read_count(const Json& json, const char* name) {
  const std::int64_t count = json.at(name).as_int();
  if (count < 0) refuse("expected '", name, "' of at least 0, got ", count);
  return static_cast<std::uint64_t>(count);
}

std::string read_checksum(const Json& json) {
  const std::string& text = json.as_string();
  if (text.size() != kChecksumDigits ||
      text.find_first_not_of("0123456789abcdef") != std::string::npos) {
    refuse("expected a checksum of ", kChecksumDigits, " hexadecimal digits, got '", text, "'");
  }
  return text;
}

ManifestFile read_file(const Json& json) {
  ManifestFile file;
  file.name = json.at("name").as_string();
  if (!is_plain_name(file.name) || file.name == kManifestName) {
    refuse("expected a file name of letters, digits, '.', '_' and '-', got '", file.name, "'");
  }
  file.num_bytes = read_count(json, "bytes");
  file.head_bytes = read_count(json, "head_bytes");
  if (file.head_bytes > file.num_bytes ||
      file.head_bytes > kSafetensorsMaxHeaderBytes + kSafetensorsLengthBytes) {
    refuse("file '", file.name, "': expected a head of at most ", file.num_bytes, " bytes, got ",
           file.head_bytes);
  }
  file.head_checksum = read_checksum(json.at("head_checksum"));
  file.checksum = read_checksum(json.at("checksum"));
  return file;
}

Shape read_shape(const Json::Array& json) {
  if (json.size() > static_cast<std::size_t>(Shape::kMaxRank)) {
    refuse("expected at most ", Shape::kMaxRank, " dimensions, got ", json.size());
  }
  std::vector<std::int64_t> dims;
  for (const Json& dim : json) {
    dims.push_back(dim.as_int());
    if (dims.back() < 0) refuse("expected dimensions of at least 0, got ", dims.back());
  }
  return Shape(dims);
}

void require_countable(const ManifestTensor& tensor) {
  if (*Shape::count(tensor.shape.dims()) >
      INT64_MAX / static_cast<std::int64_t>(size_of(tensor.dtype))) {
    refuse("shape ", tensor.shape, " has more bytes than there are");
  }
}

ManifestPiece read_piece(const Json& json, const ManifestTensor& tensor, const Manifest& manifest) {
  ManifestPiece piece;
  piece.file = static_cast<std::size_t>(read_count(json, "file"));
  if (piece.file >= manifest.files.size()) {
    refuse("expected file 0 to ", manifest.files.size(), " (excluded), got ", piece.file);
  }
  piece.unit = json.find("elements") ? PieceUnit::kElements : PieceUnit::kRows;
  const char* const unit = name_of(piece.unit);
  const Json::Array& range = json.at(unit).as_array();
  if (range.size() != 2) refuse("expected 2 ", unit, ", got ", range.size());
  const std::int64_t begin = range[0].as_int(), end = range[1].as_int();
  const std::int64_t count = count_of(piece.unit, tensor.shape);
  if (begin < 0 || end < begin || end > count) {
    refuse("expected ", unit, " within [0, ", count, "], got [", begin, ", ", end, "]");
  }
  piece.first = begin;
  piece.count = end - begin;
  for (const Json& chunk : json.at("chunks").as_array()) {
    piece.chunks.push_back(read_checksum(chunk));
  }
  const std::uint64_t bytes = bytes_of_elements(shape_of(piece, tensor), tensor.dtype);
  const std::uint64_t expected =
      bytes / manifest.chunk_bytes + (bytes % manifest.chunk_bytes != 0 ? 1 : 0);
  if (piece.chunks.size() != expected) {
    refuse("expected ", expected, " chunks, got ", piece.chunks.size());
  }
  return piece;
}

ManifestTensor read_tensor(const Json& json, const Manifest& manifest) {
  ManifestTensor tensor;
  tensor.name = json.at("name").as_string();
  try {
    const std::string& dtype = json.at("dtype").as_string();
    const auto known = dtype_of_safetensors_name(dtype);
    if (!known) refuse("expected a dtype of safetensors, got '", dtype, "'");
    tensor.dtype = *known;
    tensor.shape = read_shape(json.at("shape").as_array());
    require_countable(tensor);
    for (const Json& piece : json.at("pieces").as_array()) {
      tensor.pieces.push_back(read_piece(piece, tensor, manifest));
    }
  } catch (const Error& error) {
    throw error.with_context(concat("tensor '", tensor.name, "'"));
  }
  return tensor;
}

/// The pieces of a file are its bytes: no more, no fewer.
void require_sizes(const Manifest& manifest) {
  std::vector<std::uint64_t> sizes;
  for (const ManifestFile& file : manifest.files) sizes.push_back(file.head_bytes);
  for (const ManifestTensor& tensor : manifest.tensors) {
    for (const ManifestPiece& piece : tensor.pieces) {
      const auto bytes = bytes_of_elements(shape_of(piece, tensor), tensor.dtype);
      if (__builtin_add_overflow(sizes[piece.file], bytes, &sizes[piece.file])) {
        refuse("the tensors have more bytes than there are");
      }
    }
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == manifest.files[i].num_bytes) continue;
    refuse("file '", manifest.files[i].name, "': expected ", sizes[i],
           " bytes by its tensors, got ", manifest.files[i].num_bytes);
  }
}

template <class Values, class NameOf>
void require_different(const Values& values, NameOf&& name_of, const char* what) {
  std::set<std::string> seen;
  for (const auto& value : values) {
    if (!seen.insert(name_of(value)).second) {
      refuse("the ", what, " '", name_of(value), "' occurs twice");
    }
  }
}

std::int64_t require_format(const Json& json, const std::string& source) {
  const std::string& format = json.at("format").as_string();
  if (format != kManifestFormat) {
    refuse("expected format '", kManifestFormat, "', got '", format, "'");
  }
  const std::int64_t version = json.at("version").as_int();
  const std::string& hash = json.at("hash").as_string();
  if (version >= 1 && version <= kNewestManifestVersion && hash == kManifestHash) return version;
  fail(ErrorCode::kUnimplemented, source, ": expected version 1 to ", kNewestManifestVersion,
       " with ", kManifestHash, ", got ", version, " with ", hash,
       "; try a later version of tutti");
}

Manifest read_manifest(const Json& json) {
  Manifest manifest;
  manifest.info.step = static_cast<std::int64_t>(read_count(json, "step"));
  manifest.info.sequence = static_cast<std::int64_t>(read_count(json, "sequence"));
  manifest.info.tutti_version = json.at("tutti").as_string();
  manifest.info.numerics = json.at("numerics").as_string();
  manifest.info.about = json.at("about");
  for (const auto& [name, state] : json.at("states").as_object()) manifest.states[name] = state;
  manifest.chunk_bytes = read_count(json, "chunk_bytes");
  if (manifest.chunk_bytes == 0) refuse("expected chunks of at least 1 byte, got 0");
  for (const Json& file : json.at("files").as_array()) manifest.files.push_back(read_file(file));
  for (const Json& tensor : json.at("tensors").as_array()) {
    manifest.tensors.push_back(read_tensor(tensor, manifest));
  }
  const auto name_of = [](const auto& value) { return value.name; };
  require_different(manifest.files, name_of, "file name");
  require_different(manifest.tensors, name_of, "tensor name");
  require_sizes(manifest);
  return manifest;
}

}  // namespace

Manifest parse_manifest(std::string_view text, const std::string& source) {
  require_checksum(text, source);
  try {
    const Json json = Json::parse(text, "manifest");
    const std::int64_t version = require_format(json, source);
    Manifest manifest = read_manifest(json);
    if (version_of(manifest) != version) {
      refuse("expected version ", version_of(manifest), " by its pieces, got ", version);
    }
    return manifest;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    throw Error(ErrorCode::kDataLoss, concat(source, ": ", error.message()));
  }
}

}  // namespace tutti::internal
