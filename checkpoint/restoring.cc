// Taking variables over from a checkpoint.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/checkpoint/restoring.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

namespace tutti::internal {
namespace {

constexpr std::string_view kComponent = "/replica_";

/// "x" for "x/replica_12", nothing for other names.
std::optional<std::string> variable_of_component(const std::string& name) {
  const std::size_t at = name.rfind(kComponent);
  if (at == std::string::npos) return std::nullopt;
  const std::string digits = name.substr(at + kComponent.size());
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  return name.substr(0, at);
}

/// The tensors of each variable: its own and those of its components.
std::map<std::string, std::vector<std::string>> tensors_by_variable(
    const std::vector<Variable>& variables, const TensorMap& tensors) {
  std::map<std::string, std::vector<std::string>> found;
  for (const Variable& variable : variables) found[variable.name()];
  for (const auto& [name, tensor] : tensors) {
    auto own = found.find(name);
    if (own == found.end()) own = found.find(variable_of_component(name).value_or(name));
    if (own != found.end()) own->second.push_back(name);
  }
  return found;
}

}  // namespace

TensorMap saved_tensors(const std::vector<Variable>& variables) {
  TensorMap tensors;
  for (const Variable& variable : variables) {
    for (NamedTensor& tensor : variable.storage().save()) {
      if (!tensors.emplace(tensor.name, std::move(tensor.value)).second) {
        fail(ErrorCode::kInvalidArgument, "Checkpoint::save: two variables are saved as '",
             tensor.name, "'; expected different names; try VariableOptions::name");
      }
    }
  }
  return tensors;
}

std::vector<std::string> find_misfits(const std::vector<Variable>& variables,
                                      const TensorMap& tensors) {
  const auto by_variable = tensors_by_variable(variables, tensors);
  std::vector<std::string> misfits;
  for (const Variable& variable : variables) {
    const std::vector<std::string>& names = by_variable.at(variable.name());
    if (names.empty()) misfits.push_back(concat("variable '", variable.name(), "' is missing"));
    for (const std::string& name : names) {
      const Tensor& tensor = tensors.at(name);
      if (tensor.shape() == variable.shape() && tensor.dtype() == variable.dtype()) continue;
      misfits.push_back(concat("'", name, "': expected ", variable.dtype(), " ", variable.shape(),
                               ", got ", tensor.dtype(), " ", tensor.shape()));
    }
  }
  return misfits;
}

std::vector<std::string> find_unknown(const std::vector<Variable>& variables,
                                      const TensorMap& tensors) {
  std::set<std::string> known;
  for (const auto& [variable, names] : tensors_by_variable(variables, tensors)) {
    known.insert(names.begin(), names.end());
  }
  std::vector<std::string> unknown;
  for (const auto& [name, tensor] : tensors) {
    if (!known.contains(name)) unknown.push_back(name);
  }
  return unknown;
}

void require_none(const std::vector<std::string>& problems, const std::string& who,
                  const std::string& path) {
  if (problems.empty()) return;
  fail(ErrorCode::kInvalidArgument, who, ": '", path, "' does not fit this program (",
       problems.size(), problems.size() == 1 ? " problem" : " problems",
       "); nothing was changed: ", join(problems, "; "),
       "; try the program and options that saved it, or RestoreOptions::ignore_unknown for what is "
       "unknown");
}

void restore_all(const std::vector<Variable>& variables, const TensorMap& tensors) {
  const TensorLookup lookup = [&](const std::string& name) {
    const auto found = tensors.find(name);
    return found == tensors.end() ? Tensor() : found->second;
  };
  for (const Variable& variable : variables) variable.storage().restore(lookup);
}

}  // namespace tutti::internal
