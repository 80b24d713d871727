// Implements load_weights(), for files that tutti or another program wrote.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <utility>

#include "checkpoint/checkpoint_file.h"
#include "checkpoint/folder.h"
#include "checkpoint/version.h"
#include "core/file.h"
#include "core/names.h"
#include "tutti/checkpoint/safetensors.h"
#include "tutti/core/logging.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {
namespace {

using internal::CheckpointFile;

constexpr const char* kSingleFile = "model.safetensors";  // weights file of a Hugging Face model

/// Reads the tensors of a Hugging Face index from the files next to it.
CheckpointFile read_weight_map(const Json& index, const std::filesystem::path& path) {
  std::map<std::string, std::map<std::string, Tensor>> files;
  CheckpointFile all;
  for (const auto& [tensor, file] : index.at("weight_map").as_object()) {
    const std::string& name = file.as_string();
    if (name.empty() || name == ".." || std::filesystem::path(name).filename() != name)
      fail(ErrorCode::kInvalidArgument,
           "weight_map: expected the name of a file in the folder of the index, got '", name, "'");
    const std::string part = std::filesystem::path(path).replace_filename(name).string();
    const auto [values, is_new] = files.try_emplace(name);
    if (is_new) {
      for (NamedTensor& each : read_safetensors(part).tensors)
        values->second.emplace(each.name, std::move(each.value));
    }
    auto value = values->second.extract(tensor);
    if (!value)
      fail(ErrorCode::kDataLoss, part, ": expected tensor '", tensor, "', which ", path.string(),
           " assigns to this file, got none");
    all.tensors.insert(std::move(value));
  }
  return all;
}

/// Reads the model or the checkpoint version that the index file describes.
CheckpointFile read_indexed(const std::filesystem::path& path) {
  return internal::damage_if_refused(
      [&] { return path.string(); },
      [&] {
        const Json index = Json::parse(read_file(path.string()), "index");
        const Json* const metadata = index.find("metadata");
        const bool is_version = index.find("checksum") || (metadata && metadata->find("files"));
        const std::string folder = path.has_parent_path() ? path.parent_path().string() : ".";
        return is_version ? internal::read_checkpoint(folder) : read_weight_map(index, path);
      });
}

/// Reads a checkpoint file, a checkpoint version, or a Hugging Face model, given by its index,
/// folder or file.
CheckpointFile read_weights(const std::string& path) {
  const std::filesystem::path given(path);
  std::error_code error;
  if (given.filename().string().ends_with(".index.json")) return read_indexed(given);
  for (const char* name : {internal::kIndexName, kSingleFile}) {
    if (!std::filesystem::is_regular_file(given / name, error)) continue;
    return name == kSingleFile ? internal::read_checkpoint((given / name).string())
                               : read_indexed(given / name);
  }
  return internal::read_checkpoint(path);
}

/// Converts a tensor with the output dimension first to the layout of a variable of shape `wanted`,
/// with the output dimension last.
Tensor outputs_last(const Tensor& value, const Shape& wanted) {
  const Shape& shape = value.shape();
  if (shape.rank() < 2) return value;
  std::vector<int> order;
  for (int axis = 2; axis < shape.rank(); ++axis) order.push_back(axis);
  const bool is_depthwise = shape.rank() == 4 && wanted.rank() == 4 && shape[1] == 1 &&
                            wanted[2] != 1 && wanted[2] * wanted[3] == shape[0];
  order.insert(order.end(), {is_depthwise ? 0 : 1, is_depthwise ? 1 : 0});
  const Tensor turned = transpose(value, order);
  return is_depthwise ? reshape(turned, Shape{shape[2], shape[3], wanted[2], wanted[3]}) : turned;
}

/// Returns "'fc1.weight' float32 [8, 4], ...", with at most 50 entries.
std::string listed(const std::vector<std::pair<std::string, std::string>>& entries) {
  constexpr std::size_t kMost = 50;
  std::string text;
  for (std::size_t i = 0; i < std::min(entries.size(), kMost); ++i)
    text += concat(i == 0 ? "'" : ", '", entries[i].first, "' ", entries[i].second);
  if (entries.size() > kMost) text += concat(", and ", entries.size() - kMost, " more");
  return text.empty() ? "nothing" : text;
}

std::string list_contents(const CheckpointFile& file, const std::vector<Variable>& variables) {
  std::vector<std::pair<std::string, std::string>> has, wanted;
  for (const auto& [name, tensor] : file.tensors)
    has.emplace_back(name, concat(tensor.dtype(), ' ', tensor.shape()));
  for (const Variable& variable : variables)
    wanted.emplace_back(variable.name(), concat(variable.dtype(), ' ', variable.shape()));
  return concat("the file has: ", listed(has), "; the program expects: ", listed(wanted));
}

const Variable* find_variable(const std::vector<Variable>& variables, const std::string& name) {
  const auto found = std::ranges::find(variables, name, &Variable::name);
  return found == variables.end() ? nullptr : &*found;
}

void rename_tensors(const std::map<std::string, std::string>& names,
                    const std::vector<Variable>& variables, CheckpointFile& file) {
  std::map<std::string, Tensor> renamed;
  for (const auto& [in_file, name] : names) {
    auto node = file.tensors.extract(in_file);
    if (!node) fail(ErrorCode::kInvalidArgument, "rename: the file has no tensor '", in_file, "'");
    if (!find_variable(variables, name))
      fail(ErrorCode::kInvalidArgument, "rename: there is no variable '", name, "'");
    if (!renamed.emplace(name, std::move(node.mapped())).second)
      fail(ErrorCode::kInvalidArgument, "rename: '", name, "' is listed twice");
  }
  for (auto& [name, tensor] : renamed) file.tensors[name] = std::move(tensor);
}

void transpose_tensors(const std::vector<std::string>& parts,
                       const std::vector<Variable>& variables, CheckpointFile& file) {
  for (const std::string& part : parts) {
    bool found = false;
    for (const Variable& variable : variables) {
      if (variable.name().find(part) == std::string::npos) continue;
      found = true;
      const auto tensor = file.tensors.find(variable.name());
      if (tensor != file.tensors.end())
        tensor->second = outputs_last(tensor->second, variable.shape());
    }
    if (found) continue;
    fail(ErrorCode::kInvalidArgument, "transpose: no variable's name contains '", part, "'");
  }
}

/// Casts floating-point tensors to the types of their variables. Logs once how many were cast, as a
/// warning if a cast rounds values.
void cast_tensors(const std::vector<Variable>& variables, const std::string& path,
                  CheckpointFile& file) {
  std::string example;
  std::size_t count = 0;
  bool rounds = false;
  for (const Variable& variable : variables) {
    const auto found = file.tensors.find(variable.name());
    if (found == file.tensors.end()) continue;
    const DType from = found->second.dtype(), to = variable.dtype();
    if (from == to || !is_floating(from) || !is_floating(to)) continue;
    if (count++ == 0) example = concat("'", variable.name(), "' from ", from, " to ", to);
    rounds |= size_of(to) <= size_of(from);
    found->second = cast(found->second, to);
  }
  if (count == 0) return;
  log(rounds ? LogLevel::kWarning : LogLevel::kInfo,
      concat("load_weights: ", count, count == 1 ? " tensor of " : " tensors of ", path,
             count == 1 ? " is" : " are", " cast to the types of the variables, such as ", example,
             rounds ? "; values are rounded" : ""));
}

/// Returns the variables that the file contains; logs the names of the missing ones.
std::vector<Variable> present(const std::vector<Variable>& variables, const CheckpointFile& file,
                              const std::string& path) {
  std::vector<Variable> found;
  std::vector<std::string> kept;
  for (const Variable& variable : variables) {
    const std::string components = variable.name() + "/replica_";
    const auto first = file.tensors.lower_bound(components);
    const bool is_there = file.tensors.contains(variable.name()) ||
                          (first != file.tensors.end() && first->first.starts_with(components));
    if (is_there) {
      found.push_back(variable);
    } else {
      kept.push_back(variable.name());
    }
  }
  internal::require(!found.empty(), "none of the ", variables.size(), " variables is in ", path);
  if (!kept.empty()) {
    log_info(concat("load_weights: ", found.size(), " of ", variables.size(), " variables are in ",
                    path, "; the other variables keep their values: ", join(kept)));
  }
  return found;
}

}  // namespace

CheckpointInfo load_weights(const std::string& path, const std::vector<Variable>& variables,
                            LoadWeightsOptions options) {
  CheckpointFile file = read_weights(path);
  const Checkpoint named(variables);  // checks that the names are unique
  const std::string there_is = list_contents(file, named.variables());
  try {
    rename_tensors(options.rename, named.variables(), file);
    transpose_tensors(options.transpose, named.variables(), file);
    cast_tensors(named.variables(), path, file);
    const Checkpoint wanted(options.strict ? named.variables()
                                           : present(named.variables(), file, path));
    file.info.path = path;
    return wanted.restore(
        CheckpointSnapshot(std::make_shared<const CheckpointFile>(std::move(file))),
        {.ignore_unknown = options.ignore_unknown || !options.strict});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    throw Error(error.code(), concat("load_weights: ", error.message(), "; ", there_is,
                                     "; in LoadWeightsOptions, use .rename for other names, "
                                     ".transpose for PyTorch's layout, or .strict = false"));
  }
}

}  // namespace tutti
