// Looking at versions without taking anything over.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/checkpoint/checkpoint_versions.h"

#include <filesystem>
#include <utility>

#include "checkpoint/run_folder.h"
#include "checkpoint/safetensors_types.h"
#include "core/names.h"

namespace tutti {
namespace {

using internal::CheckpointFile;
using internal::Folder;
using internal::Manifest;

bool is_folder(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

Json tensor_json(const std::string& name, DType dtype, const Shape& shape, Json files) {
  Json json = Json::object();
  json.set("name", name).set("dtype", internal::safetensors_name_of(dtype));
  json.set("shape", Json::array_of(shape)).set("files", std::move(files));
  return json;
}

Json json_of(const CheckpointInfo& info, const std::string& path,
             const std::map<std::string, Json>& states, Json files, Json tensors) {
  Json named = Json::object(), json = Json::object();
  for (const auto& [name, state] : states) named.set(name, state);
  json.set("path", path).set("step", info.step).set("sequence", info.sequence);
  json.set("tutti", info.tutti_version).set("numerics", info.numerics);
  json.set("about", info.about).set("states", std::move(named));
  json.set("files", std::move(files)).set("tensors", std::move(tensors));
  return json;
}

Json describe(const Manifest& manifest, const std::string& path) {
  Json files = Json::array(), tensors = Json::array();
  for (const internal::ManifestFile& file : manifest.files) {
    Json json = Json::object();
    json.set("name", file.name).set("bytes", file.num_bytes).set("checksum", file.checksum);
    files.push_back(std::move(json));
  }
  for (const internal::ManifestTensor& tensor : manifest.tensors) {
    const auto name_of = [&](const auto& piece) { return manifest.files[piece.file].name; };
    tensors.push_back(tensor_json(tensor.name, tensor.dtype, tensor.shape,
                                  Json::array_of(tensor.pieces, name_of)));
  }
  return json_of(manifest.info, path, manifest.states, std::move(files), std::move(tensors));
}

Json describe(const CheckpointFile& file, const std::string& path) {
  Json tensors = Json::array();
  for (const auto& [name, tensor] : file.tensors) {
    tensors.push_back(tensor_json(name, tensor.dtype(), tensor.shape(), Json::Array{path}));
  }
  Json only = Json::object();
  only.set("name", path).set("bytes", std::filesystem::file_size(path));
  return json_of(file.info, path, file.states, Json::Array{std::move(only)}, std::move(tensors));
}

}  // namespace

std::string_view to_string(VersionState state) {
  constexpr std::string_view kNames[] = {"whole", "unfinished", "damaged"};
  return internal::name_in(kNames, state, "VersionState");
}

std::vector<CheckpointVersion> list_checkpoints(const std::string& directory) {
  std::vector<CheckpointVersion> versions;
  for (internal::FoundVersion& version : internal::find_versions(Folder::open(directory))) {
    versions.push_back(std::move(version.shown));
  }
  return versions;
}

std::vector<std::string> verify_checkpoint(const std::string& path) {
  try {
    if (!is_folder(path)) {
      internal::read_checkpoint(path);
      return {};
    }
    const Folder folder = Folder::open(path);
    return internal::find_damage(folder, internal::require_manifest(folder));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDataLoss) throw;
    return {error.message()};
  }
}

Json describe_checkpoint(const std::string& path) {
  if (!is_folder(path)) return describe(internal::read_checkpoint(path), path);
  return describe(internal::require_manifest(Folder::open(path)), path);
}

}  // namespace tutti
