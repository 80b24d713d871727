// Saving and restoring variables and state together.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/checkpoint/checkpoint.h"

#include <algorithm>
#include <utility>

#include "tutti/checkpoint/checkpoint_file.h"
#include "tutti/checkpoint/restoring.h"
#include "tutti/core/logging.h"
#include "tutti/tensor/numerics.h"

namespace tutti {
namespace {

using internal::CheckpointFile;
using StateMap = std::map<std::string, StateProvider>;

/// What to set back to when restoring fails half way. Tensors share the variables' buffers: nothing
/// is copied until a variable is written.
class Snapshot {
 public:
  Snapshot(const std::vector<Variable>& variables, const StateMap& states)
      : variables_(variables), states_(states), tensors_(internal::saved_tensors(variables)) {
    for (const auto& [name, provider] : states) values_[name] = provider.save();
  }

  void set_back() const noexcept {
    try {
      internal::restore_all(variables_, tensors_);
      for (const auto& [name, provider] : states_) provider.restore(values_.at(name));
    } catch (const std::exception& error) {
      log(LogLevel::kError, concat("Checkpoint::restore: cannot set back: ", error.what()));
    }
  }

 private:
  const std::vector<Variable>& variables_;
  const StateMap& states_;
  internal::TensorMap tensors_;
  std::map<std::string, Json> values_;
};

void take_over(const CheckpointFile& file, const std::vector<Variable>& variables,
               const StateMap& states) {
  const Snapshot before(variables, states);
  try {
    internal::restore_all(variables, file.tensors);
    for (const auto& [name, provider] : states) provider.restore(file.states.at(name));
  } catch (...) {
    before.set_back();
    throw;
  }
}

std::vector<std::string> find_problems(const CheckpointFile& file,
                                       const std::vector<Variable>& variables,
                                       const RestoreOptions& options) {
  std::vector<std::string> problems = internal::find_misfits(variables, file.tensors);
  if (options.ignore_unknown) return problems;
  for (const std::string& name : internal::find_unknown(variables, file.tensors)) {
    problems.push_back(concat("unknown tensor '", name, "'"));
  }
  return problems;
}

void find_state_problems(const CheckpointFile& file, const StateMap& states,
                         const RestoreOptions& options, std::vector<std::string>& problems) {
  for (const auto& [name, provider] : states) {
    if (!file.states.contains(name)) problems.push_back(concat("state '", name, "' is missing"));
  }
  for (const auto& [name, value] : file.states) {
    if (options.ignore_unknown || states.contains(name)) continue;
    problems.push_back(concat("unknown state '", name, "'"));
  }
}

void warn_of_other_bits(const std::string& path, const std::string& saved_with) {
  const std::string here = numerics_fingerprint();
  if (saved_with.empty() || saved_with == here) return;
  log_warning(concat("Checkpoint::restore: ", path, " was saved with '", saved_with,
                     "', this program computes with '", here,
                     "': training goes on, but not with the same bits; try TUTTI_MAX_ISA"));
}

}  // namespace

Checkpoint::Checkpoint(std::vector<Variable> variables, CheckpointOptions options)
    : options_(options) {
  add(variables);
}

void Checkpoint::add(const std::vector<Variable>& variables) {
  for (const Variable& variable : variables) {
    const auto same =
        std::find_if(variables_.begin(), variables_.end(),
                     [&](const Variable& other) { return other.name() == variable.name(); });
    if (same == variables_.end()) {
      variables_.push_back(variable);
    } else if (!(*same == variable)) {
      fail(ErrorCode::kAlreadyExists, "Checkpoint::add: there are two variables called '",
           variable.name(), "'; expected different names; try VariableOptions::name");
    }
  }
}

void Checkpoint::add_state(std::string name, StateProvider provider) {
  if (!provider.save || !provider.restore) {
    fail(ErrorCode::kInvalidArgument, "Checkpoint::add_state: state '", name,
         "': expected functions to save and to restore it");
  }
  const auto [place, added] = states_.emplace(std::move(name), std::move(provider));
  if (!added) {
    fail(ErrorCode::kAlreadyExists, "Checkpoint::add_state: there is already a state '",
         place->first, "'");
  }
}

void Checkpoint::set_about(std::string key, Json value) {
  about_.set(std::move(key), std::move(value));
}

CheckpointFile Checkpoint::values(std::int64_t step) const {
  CheckpointFile file;
  file.tensors = internal::saved_tensors(variables_);
  for (const auto& [name, provider] : states_) file.states[name] = provider.save();
  file.info.step = step;
  file.info.about = about_;
  return file;
}

void Checkpoint::save(const std::string& path, std::int64_t step) const {
  const CheckpointFile file = values(step);
  if (options_.writes) internal::write_checkpoint_file(path, file);
}

std::string Checkpoint::save_to_bytes(std::int64_t step) const {
  return internal::format_checkpoint_file(values(step));
}

std::string Checkpoint::to_bytes(const CheckpointSnapshot& snapshot) {
  return internal::format_checkpoint_file(snapshot.values());
}

CheckpointSnapshot Checkpoint::snapshot(std::int64_t step) const {
  return CheckpointSnapshot(std::make_shared<const CheckpointFile>(values(step)));
}

CheckpointInfo Checkpoint::restore(const CheckpointSnapshot& snapshot) const {
  return take(snapshot.values(), "a snapshot", {});
}

CheckpointInfo Checkpoint::take(const CheckpointFile& file, const std::string& source,
                                RestoreOptions options) const {
  std::vector<std::string> problems = find_problems(file, variables_, options);
  find_state_problems(file, states_, options, problems);
  internal::require_none(problems, "Checkpoint::restore", source);
  take_over(file, variables_, states_);
  warn_of_other_bits(source, file.info.numerics);
  return file.info;
}

CheckpointInfo Checkpoint::restore(const std::string& path, RestoreOptions options) const {
  return take(internal::read_checkpoint(path), path, options);
}

CheckpointInfo Checkpoint::restore_from_bytes(std::string_view bytes, const std::string& source,
                                              RestoreOptions options) const {
  return take(internal::parse_checkpoint_file(bytes, source), source, options);
}

void save_weights(const std::string& path, const std::vector<Variable>& variables,
                  CheckpointOptions options) {
  Checkpoint(variables, options).save(path);
}

CheckpointInfo load_weights(const std::string& path, const std::vector<Variable>& variables,
                            RestoreOptions options) {
  const CheckpointFile file = internal::read_checkpoint(path);
  const Checkpoint named(variables);  // each name once
  internal::require_none(find_problems(file, named.variables(), options), "load_weights", path);
  take_over(file, named.variables(), {});
  return file.info;
}

}  // namespace tutti
