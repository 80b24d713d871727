// Writing safetensors files.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <set>

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

using internal::safetensors_name_of;
using internal::SafetensorsLayout;

/// The place of a type in kSafetensorsDTypes.
std::size_t rank_of(DType dtype) {
  std::size_t rank = 0;
  while (rank < std::size(kSafetensorsDTypes) && kSafetensorsDTypes[rank].second != dtype) ++rank;
  TUTTI_CHECK(rank < std::size(kSafetensorsDTypes), "safetensors: no name for ", dtype);
  return rank;
}

// Our writer replaces what is not UTF-8: such a name would come back as another.
bool is_utf8(const std::string& text) { return Json::parse(Json(text).dump()).as_string() == text; }

void require_name(const std::string& name, std::set<std::string>& seen, const char* what) {
  const char* problem = nullptr;
  if (name.empty()) problem = "is empty";
  if (name == kSafetensorsMetadata) problem = "is reserved by the format";
  if (!problem && !is_utf8(name)) problem = "is not UTF-8";
  if (!problem && !seen.insert(name).second) problem = "occurs twice";
  if (problem) {
    fail(ErrorCode::kInvalidArgument, "format_safetensors: the ", what, " '", name, "' ", problem,
         "; expected different names, none of them empty");
  }
}

std::vector<NamedTensor> in_file_order(const std::vector<NamedTensor>& tensors) {
  std::set<std::string> seen;
  std::vector<NamedTensor> sorted;
  for (const NamedTensor& tensor : tensors) {
    require_name(tensor.name, seen, "tensor name");
    if (!tensor.value.defined()) {
      fail(ErrorCode::kInvalidArgument, "format_safetensors: the tensor '", tensor.name,
           "' is undefined");
    }
    sorted.push_back({tensor.name, tensor.value.to(Device{})});
  }
  std::sort(sorted.begin(), sorted.end(), [](const NamedTensor& a, const NamedTensor& b) {
    const std::size_t rank_a = rank_of(a.value.dtype()), rank_b = rank_of(b.value.dtype());
    return rank_a != rank_b ? rank_a < rank_b : a.name < b.name;
  });
  return sorted;
}

Json metadata_json(const SafetensorsFile& file) {
  Json metadata = Json::object();
  std::set<std::string> seen;
  for (const auto& [key, value] : file.metadata) {
    require_name(key, seen, "metadata key");
    if (!is_utf8(value)) {
      fail(ErrorCode::kInvalidArgument, "format_safetensors: the metadata of key '", key,
           "' are not UTF-8");
    }
    metadata.set(key, value);
  }
  return metadata;
}

Json tensor_json(const Tensor& tensor, std::size_t offset) {
  Json shape = Json::array();
  for (std::int64_t dim : tensor.shape()) shape.push_back(dim);
  Json entry = Json::object();
  entry.set("dtype", safetensors_name_of(tensor.dtype()));
  entry.set("shape", std::move(shape));
  entry.set("data_offsets",
            Json::Array{std::uint64_t{offset}, std::uint64_t{offset + tensor.num_bytes()}});
  return entry;
}

std::string header_of(const SafetensorsFile& file, const std::vector<NamedTensor>& sorted) {
  Json::Object header;
  if (!file.metadata.empty()) {
    header.emplace_back(std::string(kSafetensorsMetadata), metadata_json(file));
  }
  std::size_t offset = 0;
  for (const NamedTensor& tensor : sorted) {
    header.emplace_back(tensor.name, tensor_json(tensor.value, offset));
    offset += tensor.value.num_bytes();
  }
  std::string text = Json(std::move(header)).dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the elements begin at a multiple of 8
  return text;
}

void append_length(std::string& bytes, std::size_t length) {
  for (std::size_t i = 0; i < kSafetensorsLengthBytes; ++i) {
    bytes.push_back(static_cast<char>(length >> (8 * i) & 0xFF));
  }
}

}  // namespace

std::string_view internal::safetensors_name_of(DType dtype) {
  return kSafetensorsDTypes[rank_of(dtype)].first;
}

std::optional<DType> internal::dtype_of_safetensors_name(std::string_view name) {
  for (const auto& [known, dtype] : kSafetensorsDTypes) {
    if (known == name) return dtype;
  }
  return std::nullopt;
}

SafetensorsLayout internal::lay_out_safetensors(const SafetensorsFile& file) {
  SafetensorsLayout layout;
  layout.tensors = in_file_order(file.tensors);
  const std::string header = header_of(file, layout.tensors);
  if (header.size() > kSafetensorsMaxHeaderBytes) {
    fail(ErrorCode::kInvalidArgument, "format_safetensors: expected a header of at most ",
         kSafetensorsMaxHeaderBytes, " bytes, got ", header.size());
  }
  append_length(layout.head, header.size());
  layout.head += header;
  layout.num_bytes = layout.head.size();
  for (const NamedTensor& tensor : layout.tensors) layout.num_bytes += tensor.value.num_bytes();
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

void write_safetensors(const std::string& path, const SafetensorsFile& file) {
  write_file_atomically(path, format_safetensors(file));
}

}  // namespace tutti
