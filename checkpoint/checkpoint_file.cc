// How a checkpoint lies in a safetensors file.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/checkpoint/checkpoint_file.h"

#include <algorithm>
#include <charconv>

#include "tutti/checkpoint/safetensors.h"
#include "tutti/tensor/numerics.h"

namespace tutti::internal {
namespace {

constexpr std::int64_t kFormatVersion = 1;
constexpr std::string_view kFormatKey = "tutti_format";
constexpr std::string_view kVersionKey = "tutti_version";
constexpr std::string_view kNumericsKey = "numerics";
constexpr std::string_view kStepKey = "step";
constexpr std::string_view kStatePrefix = "state/";

std::int64_t read_number(const std::string& path, std::string_view key, const std::string& text) {
  std::int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, number);
  if (result.ec != std::errc() || result.ptr != end) {
    fail(ErrorCode::kDataLoss, path, ": metadata '", key, "': expected a whole number, got '", text,
         "'");
  }
  return number;
}

Json read_state(const std::string& path, const std::string& key, const std::string& text) {
  try {
    return Json::parse(text, key);
  } catch (const Error& error) {
    throw Error(ErrorCode::kDataLoss, concat(path, ": metadata: ", error.message()));
  }
}

void require_known_format(const std::string& path, std::int64_t format) {
  if (format >= 1 && format <= kFormatVersion) return;
  fail(ErrorCode::kUnimplemented, path, ": expected checkpoint format 1 to ", kFormatVersion,
       ", got ", format, "; try a later version of tutti");
}

void read_metadata(const std::string& path, const std::string& key, const std::string& value,
                   CheckpointFile& file) {
  if (key == kFormatKey) {
    require_known_format(path, read_number(path, key, value));
  } else if (key == kStepKey) {
    file.info.step = read_number(path, key, value);
  } else if (key == kVersionKey) {
    file.info.tutti_version = value;
  } else if (key == kNumericsKey) {
    file.info.numerics = value;
  } else if (key.starts_with(kStatePrefix)) {
    file.states[key.substr(kStatePrefix.size())] = read_state(path, key, value);
  }
}

}  // namespace

void write_checkpoint_file(const std::string& path, const CheckpointFile& file) {
  SafetensorsFile out;
  out.metadata = {{std::string(kFormatKey), concat(kFormatVersion)},
                  {std::string(kVersionKey), TUTTI_VERSION},
                  {std::string(kNumericsKey), numerics_fingerprint()},
                  {std::string(kStepKey), concat(file.info.step)}};
  for (const auto& [name, state] : file.states) {
    out.metadata.emplace_back(concat(kStatePrefix, name), state.dump());
  }
  for (const auto& [name, tensor] : file.tensors) out.tensors.push_back({name, tensor});
  write_safetensors(path, out);
}

CheckpointFile read_checkpoint_file(const std::string& path) {
  SafetensorsFile in = read_safetensors(path);
  CheckpointFile file;
  const auto is_ours = [](const auto& entry) { return entry.first == kFormatKey; };
  const bool ours = std::any_of(in.metadata.begin(), in.metadata.end(), is_ours);
  for (const auto& [key, value] : in.metadata) {
    if (ours) read_metadata(path, key, value, file);
  }
  for (NamedTensor& tensor : in.tensors) file.tensors[tensor.name] = std::move(tensor.value);
  return file;
}

}  // namespace tutti::internal
