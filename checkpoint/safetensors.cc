// Implements writing and reading of safetensors files.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/checkpoint/safetensors.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>

#include "checkpoint/folder.h"
#include "checkpoint/safetensors_types.h"
#include "core/byte_codec.h"
#include "core/file.h"
#include "core/file_kind.h"
#include "core/names.h"
#include "tutti/core/json.h"

namespace tutti {
namespace {

using internal::fail_at;
using internal::kSafetensorsDTypes;
using internal::kSafetensorsLengthBytes;
using internal::kSafetensorsMaxHeaderBytes;
using internal::kSafetensorsMetadata;

using internal::safetensors_name_of;
using internal::SafetensorsEntry;
using internal::SafetensorsHeader;
using internal::SafetensorsLayout;

/// Returns the index of a type in kSafetensorsDTypes.
std::size_t rank_of(DType dtype) {
  std::size_t rank = 0;
  while (rank < std::size(kSafetensorsDTypes) && kSafetensorsDTypes[rank].second != dtype) ++rank;
  TUTTI_CHECK(rank < std::size(kSafetensorsDTypes), "safetensors: no name for ", dtype);
  return rank;
}

// tutti's JSON writer replaces invalid UTF-8, so an invalid name would be read back as another
// name.
bool is_utf8(const std::string& text) { return Json::parse(Json(text).dump()).as_string() == text; }

void require_name(const std::string& name, std::set<std::string>& seen, const char* what) {
  const char* problem = nullptr;
  if (name.empty()) problem = "is empty";
  if (name == kSafetensorsMetadata) problem = "is reserved by the format";
  if (!problem && !is_utf8(name)) problem = "is not UTF-8";
  if (!problem && !seen.insert(name).second) problem = "occurs twice";
  internal::require(!problem, "format_safetensors: the ", what, " '", name, "' ", problem,
                    "; expected unique, non-empty names");
}

void sort_as_in_file(std::vector<SafetensorsEntry>& entries) {
  std::set<std::string> seen;
  for (const SafetensorsEntry& entry : entries) require_name(entry.name, seen, "tensor name");
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    const std::size_t rank_a = rank_of(a.dtype), rank_b = rank_of(b.dtype);
    return rank_a != rank_b ? rank_a < rank_b : a.name < b.name;
  });
}

using TextPairs = std::vector<std::pair<std::string, std::string>>;

Json metadata_json(const TextPairs& pairs) {
  Json metadata = Json::object();
  std::set<std::string> seen;
  for (const auto& [key, value] : pairs) {
    require_name(key, seen, "metadata key");
    internal::require(is_utf8(value), "format_safetensors: the metadata value of key '", key,
                      "' is not UTF-8");
    metadata.set(key, value);
  }
  return metadata;
}

Json tensor_json(const SafetensorsEntry& tensor) {
  Json entry = Json::object();
  entry.set("dtype", safetensors_name_of(tensor.dtype));
  entry.set("shape", Json::array_of(tensor.shape));
  entry.set("data_offsets", Json::Array{std::uint64_t{tensor.begin}, std::uint64_t{tensor.end}});
  return entry;
}

std::string header_of(const TextPairs& metadata, const std::vector<SafetensorsEntry>& sorted) {
  Json::Object header;
  if (!metadata.empty()) {
    header.emplace_back(std::string(kSafetensorsMetadata), metadata_json(metadata));
  }
  for (const SafetensorsEntry& entry : sorted) {
    header.emplace_back(entry.name, tensor_json(entry));
  }
  std::string text = Json(std::move(header)).dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the elements begin at a multiple of 8
  return text;
}

}  // namespace

std::uint64_t internal::safetensors_header_length(std::string_view bytes) {
  std::uint64_t length = 0;
  std::ranges::copy(bytes.substr(0, kSafetensorsLengthBytes), reinterpret_cast<char*>(&length));
  return length;
}

std::string_view internal::safetensors_name_of(DType dtype) {
  return kSafetensorsDTypes[rank_of(dtype)].first;
}

std::optional<DType> internal::dtype_of_safetensors_name(std::string_view name) {
  for (const auto& [known, dtype] : kSafetensorsDTypes) {
    if (known == name) return dtype;
  }
  return std::nullopt;
}

std::string internal::format_safetensors_head(const TextPairs& metadata,
                                              std::vector<SafetensorsEntry>& entries) {
  sort_as_in_file(entries);
  std::size_t end = 0;
  for (SafetensorsEntry& entry : entries) {
    entry.begin = end;
    end += static_cast<std::size_t>(entry.shape.num_elements()) * size_of(entry.dtype);
    entry.end = end;
  }
  const std::string header = header_of(metadata, entries);
  internal::require(header.size() <= kSafetensorsMaxHeaderBytes,
                    "format_safetensors: expected a header of at most ", kSafetensorsMaxHeaderBytes,
                    " bytes, got ", header.size());
  std::string head;
  internal::put_little_endian(head, std::uint64_t{header.size()});
  head += header;
  for (SafetensorsEntry& entry : entries) {
    entry.begin += head.size();
    entry.end += head.size();
  }
  return head;
}

SafetensorsLayout internal::lay_out_safetensors(const SafetensorsFile& file) {
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, Tensor> values;
  for (const auto& [name, value] : file.tensors) {
    internal::require(value.defined(), "format_safetensors: the tensor '", name, "' is undefined");
    entries.push_back({name, value.dtype(), value.shape()});
    values.emplace(name, value);
  }
  SafetensorsLayout layout;
  layout.head = format_safetensors_head(file.metadata, entries);
  layout.num_bytes = layout.head.size();
  for (const SafetensorsEntry& entry : entries) {
    layout.tensors.push_back({entry.name, values.at(entry.name).to(Device{})});
    layout.num_bytes = entry.end;
  }
  return layout;
}

std::string format_safetensors(const SafetensorsFile& file) {
  SafetensorsLayout layout = internal::lay_out_safetensors(file);
  std::string bytes = std::move(layout.head);
  bytes.reserve(layout.num_bytes);
  for (const NamedTensor& tensor : layout.tensors) {
    const std::span<const std::byte> elements = tensor.value.bytes();
    bytes.append(reinterpret_cast<const char*>(elements.data()), elements.size());
  }
  return bytes;
}

// Reading. The header is not trusted: each value in it is checked against the file's size before it
// is used to read elements.

namespace {

class HeaderParser {
 public:
  HeaderParser(std::string_view bytes, std::size_t file_size, const std::string& source)
      : bytes_(bytes), file_size_(file_size), source_(source) {}

  SafetensorsHeader parse() {
    const Json json = read_header();
    SafetensorsHeader header;
    for (const auto& [name, value] : json.as_object()) {
      if (name == kSafetensorsMetadata) {
        header.metadata = read_metadata(value);
      } else {
        header.entries.push_back(read_entry(name, value));
      }
    }
    place(header.entries);
    return header;
  }

 private:
  std::string kind() const {
    const std::string note = internal::kind_note(bytes_);
    return note.empty() ? "; is this a complete safetensors file?" : note;
  }

  // Reports errors in the header's JSON as damage to the file.
  template <class Body>
  auto in_header(const std::string& what, Body&& body) const {
    return internal::damage_if_refused(
        [&] { return concat(source_, ": offset ", kSafetensorsLengthBytes, ": ", what); }, body);
  }

  Json read_header() {
    if (bytes_.size() < kSafetensorsLengthBytes) {
      fail_at(source_, bytes_.size(),
              "the file ends within the header's length; expected at least ",
              kSafetensorsLengthBytes, " bytes, got ", bytes_.size(), kind());
    }
    const std::uint64_t length = internal::safetensors_header_length(bytes_);
    if (length > kSafetensorsMaxHeaderBytes) {
      fail_at(source_, 0, "the header is too long; expected at most ", kSafetensorsMaxHeaderBytes,
              " bytes, got ", length, kind());
    }
    const std::string_view rest = bytes_.substr(kSafetensorsLengthBytes);
    if (rest.size() < length) {
      fail_at(source_, bytes_.size(), "the file ends within its header; expected ", length,
              " bytes of header, got ", rest.size(), kind());
    }
    head_size_ = kSafetensorsLengthBytes + length;
    Json header = in_header("wrong header; expected JSON with every name once, got",
                            [&] { return Json::parse(rest.substr(0, length), "header"); });
    if (!header.is_object() || rest[0] != '{') {
      fail_at(source_, kSafetensorsLengthBytes,
              "wrong header; expected a JSON object, got another value", kind());
    }
    return header;
  }

  std::vector<std::pair<std::string, std::string>> read_metadata(const Json& json) const {
    return in_header("wrong metadata", [&] {
      std::vector<std::pair<std::string, std::string>> metadata;
      for (const auto& [key, value] : json.as_object())
        metadata.emplace_back(key, value.as_string());
      return metadata;
    });
  }

  SafetensorsEntry read_entry(const std::string& name, const Json& json) const {
    return in_header(concat("tensor '", name, "'"), [&] {
      for (const auto& [key, value] : json.as_object()) {
        if (key != "dtype" && key != "shape" && key != "data_offsets") {
          fail(ErrorCode::kInvalidArgument, "expected only dtype, shape and data_offsets, got '",
               key, "'");
        }
      }
      SafetensorsEntry entry;
      entry.name = name;
      entry.dtype = read_dtype(name, member(json, "dtype").as_string());
      entry.shape = read_shape(name, member(json, "shape").as_array());
      const Json::Array& offsets = member(json, "data_offsets").as_array();
      internal::require(offsets.size() == 2, "expected 2 data_offsets, got ", offsets.size());
      entry.begin = read_count(offsets[0], "data_offsets");
      entry.end = read_count(offsets[1], "data_offsets");
      require_size(entry);
      return entry;
    });
  }

  static const Json& member(const Json& json, const char* name) {
    const Json* found = json.find(name);
    if (!found) fail(ErrorCode::kInvalidArgument, "expected a member '", name, "', got none");
    return *found;
  }

  static std::size_t read_count(const Json& json, const char* what) {
    const std::int64_t count = json.as_int();
    if (count < 0) fail(ErrorCode::kInvalidArgument, "expected ", what, " >= 0, got ", count);
    return static_cast<std::size_t>(count);
  }

  DType read_dtype(const std::string& tensor, const std::string& name) const {
    if (const auto dtype = internal::dtype_of_safetensors_name(name)) return *dtype;
    for (const char* other : {"F8_E4M3", "F8_E5M2", "I8", "I16", "U16", "U32", "U64"}) {
      if (other != name) continue;
      fail(ErrorCode::kUnimplemented, source_, ": tensor '", tensor, "' has elements of type ",
           name, "; expected F16, BF16, F32, F64, I32, I64, U8 or BOOL; convert the file");
    }
    fail(ErrorCode::kInvalidArgument, "expected a safetensors dtype, got '", name, "'");
  }

  Shape read_shape(const std::string& tensor, const Json::Array& json) const {
    if (json.size() > static_cast<std::size_t>(Shape::kMaxRank)) {
      fail(ErrorCode::kUnimplemented, source_, ": tensor '", tensor, "' has ", json.size(),
           " dimensions; expected at most ", Shape::kMaxRank, "; reshape it");
    }
    std::vector<std::int64_t> dims;
    for (const Json& dim : json)
      dims.push_back(static_cast<std::int64_t>(read_count(dim, "shape")));
    return Shape(dims);
  }

  static void require_size(const SafetensorsEntry& entry) {
    std::size_t size = 0;
    const bool too_large = __builtin_mul_overflow(
        static_cast<std::size_t>(entry.shape.num_elements()), size_of(entry.dtype), &size);
    if (!too_large && entry.begin <= entry.end && entry.end - entry.begin == size) return;
    fail(ErrorCode::kInvalidArgument, "expected data_offsets that span ",
         too_large ? std::string("more bytes than any file has") : concat(size, " bytes"),
         " for shape ", entry.shape, " of ", entry.dtype, ", got [", entry.begin, ", ", entry.end,
         "]");
  }

  // Sorts the tensors by offset and makes offsets relative to the start of the file. Throws unless
  // the tensors fill the file after the head without overlaps or gaps.
  void place(std::vector<SafetensorsEntry>& entries) const {
    std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    std::size_t end = 0;
    for (SafetensorsEntry& entry : entries) {
      if (entry.end > file_size_ - head_size_) {
        fail_at(source_, file_size_, "the file ends within tensor '", entry.name,
                "'; expected elements up to offset ", head_size_ + entry.end, ", got ", file_size_,
                " bytes");
      }
      if (entry.begin != end) {
        fail_at(source_, head_size_ + entry.begin, "tensor '", entry.name, "' ",
                entry.begin < end ? "overlaps the previous tensor" : "follows a gap",
                "; expected it at offset ", head_size_ + end);
      }
      end = entry.end;
      entry.begin += head_size_;
      entry.end += head_size_;
    }
    if (head_size_ + end != file_size_) {
      fail_at(source_, head_size_ + end, "the file continues after its last tensor; expected ",
              head_size_ + end, " bytes, got ", file_size_);
    }
  }

  std::string_view bytes_;
  std::size_t file_size_;
  const std::string& source_;
  std::size_t head_size_ = 0;
};

Tensor read_tensor(std::string_view bytes, const SafetensorsEntry& entry,
                   const std::string& source) {
  const std::string_view elements = bytes.substr(entry.begin, entry.end - entry.begin);
  internal::require_elements(elements, entry, entry.begin, source);
  return Tensor::from_bytes(entry.shape, entry.dtype,
                            std::as_bytes(std::span(elements.data(), elements.size())));
}

}  // namespace

void internal::require_elements(std::string_view elements, const SafetensorsEntry& entry,
                                std::uint64_t offset, const std::string& source) {
  if (entry.dtype != DType::kBool) return;
  const std::size_t bad = elements.find_first_not_of(std::string_view("\0\1", 2));
  if (bad == std::string_view::npos) return;
  fail_at(source, offset + bad, "tensor '", entry.name, "' of type BOOL: expected 0 or 1, got ",
          int{static_cast<unsigned char>(elements[bad])});
}

SafetensorsHeader internal::parse_safetensors_header(std::string_view bytes, std::size_t file_size,
                                                     const std::string& source) {
  return HeaderParser(bytes, file_size, source).parse();
}

SafetensorsFile parse_safetensors(std::string_view bytes, const std::string& source) {
  SafetensorsHeader header = internal::parse_safetensors_header(bytes, bytes.size(), source);
  SafetensorsFile file;
  file.metadata = std::move(header.metadata);
  for (const SafetensorsEntry& entry : header.entries) {
    file.tensors.push_back({entry.name, read_tensor(bytes, entry, source)});
  }
  return file;
}

SafetensorsFile read_safetensors(const std::string& path) {
  return parse_safetensors(read_file(path), path);
}

void write_safetensors(const std::string& path, const SafetensorsFile& file) {
  write_file_atomically(path, format_safetensors(file));
}

}  // namespace tutti
