// Reading safetensors files.
// SPDX-License-Identifier: Apache-2.0
//
// Nothing is believed: the header decides where elements are only after every claim in it was
// compared with the bytes that are there.
#include <algorithm>
#include <optional>

#include "tutti/checkpoint/safetensors.h"
#include "tutti/checkpoint/safetensors_types.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"

namespace tutti {
namespace {

using internal::kSafetensorsDTypes;
using internal::kSafetensorsLengthBytes;
using internal::kSafetensorsMaxHeaderBytes;
using internal::kSafetensorsMetadata;

/// One tensor of the header. Offsets count from the end of the header.
struct Entry {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape shape;
  std::size_t begin = 0;
  std::size_t end = 0;
};

class Parser {
 public:
  Parser(std::string_view bytes, const std::string& source) : bytes_(bytes), source_(source) {}

  SafetensorsFile parse() {
    const Json header = read_header();
    SafetensorsFile file;
    std::vector<Entry> entries;
    for (const auto& [name, value] : header.as_object()) {
      if (name == kSafetensorsMetadata) {
        file.metadata = read_metadata(value);
      } else {
        entries.push_back(read_entry(name, value));
      }
    }
    require_contiguous(entries);
    for (const Entry& entry : entries) file.tensors.push_back({entry.name, read_tensor(entry)});
    return file;
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail_at(std::size_t offset, const Parts&... parts) const {
    fail(ErrorCode::kDataLoss, source_, ": offset ", offset, ": ", parts...);
  }

  // Errors in the header's JSON are damage of the file.
  template <class Body>
  auto in_header(const std::string& what, Body&& body) const {
    try {
      return body();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidArgument) throw;
      fail_at(kSafetensorsLengthBytes, what, ": ", error.message());
    }
  }

  Json read_header() {
    if (bytes_.size() < kSafetensorsLengthBytes) {
      fail_at(bytes_.size(), "the file ends within the header's length; expected at least ",
              kSafetensorsLengthBytes, " bytes, got ", bytes_.size());
    }
    std::uint64_t length = 0;
    for (std::size_t i = kSafetensorsLengthBytes; i-- > 0;) {
      length = length << 8 | static_cast<unsigned char>(bytes_[i]);
    }
    if (length > kSafetensorsMaxHeaderBytes) {
      fail_at(0, "the header is too long; expected at most ", kSafetensorsMaxHeaderBytes,
              " bytes, got ", length);
    }
    const std::string_view rest = bytes_.substr(kSafetensorsLengthBytes);
    if (rest.size() < length) {
      fail_at(bytes_.size(), "the file ends within its header; expected ", length,
              " bytes of header, got ", rest.size());
    }
    elements_ = rest.substr(length);
    Json header = in_header("wrong header; expected JSON with every name once, got",
                            [&] { return Json::parse(rest.substr(0, length), "header"); });
    if (!header.is_object() || rest[0] != '{') {
      fail_at(kSafetensorsLengthBytes, "wrong header; expected a JSON object, got something else");
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

  Entry read_entry(const std::string& name, const Json& json) const {
    return in_header(concat("tensor '", name, "'"), [&] {
      for (const auto& [key, value] : json.as_object()) {
        if (key != "dtype" && key != "shape" && key != "data_offsets") {
          fail(ErrorCode::kInvalidArgument, "expected dtype, shape and data_offsets, got '", key,
               "'");
        }
      }
      Entry entry;
      entry.name = name;
      entry.dtype = read_dtype(name, member(json, "dtype").as_string());
      entry.shape = read_shape(name, member(json, "shape").as_array());
      const Json::Array& offsets = member(json, "data_offsets").as_array();
      if (offsets.size() != 2) {
        fail(ErrorCode::kInvalidArgument, "expected 2 data_offsets, got ", offsets.size());
      }
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
    if (count < 0)
      fail(ErrorCode::kInvalidArgument, "expected ", what, " of at least 0, got ", count);
    return static_cast<std::size_t>(count);
  }

  DType read_dtype(const std::string& tensor, const std::string& name) const {
    for (const auto& [known, dtype] : kSafetensorsDTypes) {
      if (known == name) return dtype;
    }
    for (const char* other :
         {"F16", "BF16", "F8_E4M3", "F8_E5M2", "I8", "I16", "U16", "U32", "U64"}) {
      if (other != name) continue;
      fail(ErrorCode::kUnimplemented, source_, ": tensor '", tensor, "' has elements of type ",
           name, "; expected F32, F64, I32, I64, U8 or BOOL; try to convert the file");
    }
    fail(ErrorCode::kInvalidArgument, "expected a dtype of safetensors, got '", name, "'");
  }

  Shape read_shape(const std::string& tensor, const Json::Array& json) const {
    if (json.size() > static_cast<std::size_t>(Shape::kMaxRank)) {
      fail(ErrorCode::kUnimplemented, source_, ": tensor '", tensor, "' has ", json.size(),
           " dimensions; expected at most ", Shape::kMaxRank);
    }
    std::vector<std::int64_t> dims;
    for (const Json& dim : json)
      dims.push_back(static_cast<std::int64_t>(read_count(dim, "shape")));
    return Shape(dims);
  }

  // The product of the dimensions can be larger than any number.
  static void require_size(const Entry& entry) {
    std::size_t size = size_of(entry.dtype);
    bool too_large = false;
    for (std::int64_t dim : entry.shape) {
      too_large |= __builtin_mul_overflow(size, static_cast<std::size_t>(dim), &size);
    }
    if (std::find(entry.shape.begin(), entry.shape.end(), 0) != entry.shape.end()) {
      size = 0;
      too_large = false;
    }
    if (!too_large && entry.begin <= entry.end && entry.end - entry.begin == size) return;
    fail(ErrorCode::kInvalidArgument, "expected data_offsets that span ",
         too_large ? std::string("more bytes than there are") : concat(size, " bytes"),
         " for shape ", entry.shape, " of ", entry.dtype, ", got [", entry.begin, ", ", entry.end,
         "]");
  }

  std::size_t file_offset(std::size_t offset) const {
    return bytes_.size() - elements_.size() + offset;
  }

  // The tensors fill the rest of the file: no overlap, no hole. Sorts them by place.
  void require_contiguous(std::vector<Entry>& entries) const {
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    std::size_t end = 0;
    for (const Entry& entry : entries) {
      if (entry.end > elements_.size()) {
        fail_at(bytes_.size(), "the file ends within tensor '", entry.name,
                "'; expected elements up to offset ", file_offset(entry.end), ", got ",
                bytes_.size(), " bytes");
      }
      if (entry.begin != end) {
        fail_at(file_offset(entry.begin), "tensor '", entry.name, "' ",
                entry.begin < end ? "overlaps the one before" : "leaves a hole before it",
                "; expected it at offset ", file_offset(end));
      }
      end = entry.end;
    }
    if (end != elements_.size()) {
      fail_at(file_offset(end), "the file goes on after its last tensor; expected ",
              file_offset(end), " bytes, got ", bytes_.size());
    }
  }

  Tensor read_tensor(const Entry& entry) const {
    const std::string_view elements = elements_.substr(entry.begin, entry.end - entry.begin);
    if (entry.dtype == DType::kBool) {
      const std::size_t bad = elements.find_first_not_of(std::string_view("\0\1", 2));
      if (bad != std::string_view::npos) {
        fail_at(file_offset(entry.begin + bad), "tensor '", entry.name,
                "' of type BOOL: expected 0 or 1, got ",
                int{static_cast<unsigned char>(elements[bad])});
      }
    }
    return Tensor::from_bytes(entry.shape, entry.dtype,
                              std::as_bytes(std::span(elements.data(), elements.size())));
  }

  std::string_view bytes_;
  const std::string& source_;
  std::string_view elements_;
};

}  // namespace

SafetensorsFile parse_safetensors(std::string_view bytes, const std::string& source) {
  return Parser(bytes, source).parse();
}

SafetensorsFile read_safetensors(const std::string& path) {
  return parse_safetensors(read_file(path), path);
}

}  // namespace tutti
