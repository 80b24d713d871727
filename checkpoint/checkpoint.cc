// Implements Checkpoint, which saves and restores variables and state together.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/checkpoint/checkpoint.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "checkpoint/checkpoint_file.h"
#include "checkpoint/run_folder.h"
#include "core/call_site.h"
#include "core/file.h"
#include "tutti/core/logging.h"
#include "tutti/tensor/numerics.h"

namespace tutti {
namespace {

using internal::CheckpointFile;
using TensorMap = std::map<std::string, Tensor>;
using StateMap = std::map<std::string, StateProvider>;
using TensorProviders = std::map<std::string, TensorProvider>;

// Restoring variables: all of them or none.

constexpr std::string_view kComponent = "/replica_";
/// Suffix of the tensor that stores how often each replica has updated its component of a variable.
constexpr std::string_view kUpdates = "/replica_updates";

/// Returns "x" for "x/replica_12" and "x/replica_updates", nullopt for other names.
std::optional<std::string> variable_of_component(const std::string& name) {
  const std::size_t at = name.rfind(kComponent);
  if (at == std::string::npos) return std::nullopt;
  if (name.ends_with(kUpdates)) return name.substr(0, at);
  const std::string digits = name.substr(at + kComponent.size());
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  return name.substr(0, at);
}

/// Type and shape of a tensor in a checkpoint, stored whole or in parts.
struct TensorKind {
  DType dtype;
  Shape shape;
};
using TensorKinds = std::map<std::string, TensorKind>;

TensorKinds kinds_in(const CheckpointFile& file) {
  TensorKinds kinds;
  for (const auto& [name, tensor] : file.tensors) kinds[name] = {tensor.dtype(), tensor.shape()};
  for (const auto& [name, part] : file.parts) kinds[name] = {part.dtype, part.shape};
  return kinds;
}

/// Maps each variable to the names of its tensors: the variable's own tensor and its components'.
std::map<std::string, std::vector<std::string>> tensors_by_variable(
    const std::vector<Variable>& variables, const TensorKinds& tensors) {
  std::map<std::string, std::vector<std::string>> found;
  for (const Variable& variable : variables) found[variable.name()];
  for (const auto& [name, kind] : tensors) {
    auto own = found.find(name);
    if (own == found.end()) own = found.find(variable_of_component(name).value_or(name));
    if (own != found.end()) own->second.push_back(name);
  }
  return found;
}

[[noreturn]] void fail_saved_twice(const std::string& name) {
  fail(ErrorCode::kInvalidArgument, "Checkpoint::save: two variables are saved as '", name,
       "'; expected different names; use VariableOptions::name");
}

/// Returns the tensors that VariableStorage::save() returns for all variables. Throws
/// kInvalidArgument if two tensors have the same name.
TensorMap saved_tensors(const std::vector<Variable>& variables) {
  TensorMap tensors;
  for (const Variable& variable : variables) {
    for (NamedTensor& tensor : variable.storage().save()) {
      if (!tensors.emplace(tensor.name, std::move(tensor.value)).second) {
        fail_saved_twice(tensor.name);
      }
    }
  }
  return tensors;
}

/// Same as saved_tensors(), but saves sharded variables in `form`.
CheckpointFile saved(const std::vector<Variable>& variables, internal::SavedAs form) {
  using internal::SavedAs;
  CheckpointFile file;
  std::vector<Variable> whole;
  for (const Variable& variable : variables) {
    auto part = form == SavedAs::kWhole ? std::nullopt : variable.storage().save_part();
    if (!part || (part->has_others && form == SavedAs::kWholeOfWorkers)) {
      whole.push_back(variable);
    } else if (!file.parts.emplace(part->name, std::move(*part)).second) {
      fail_saved_twice(variable.name());
    }
  }
  file.tensors = saved_tensors(whole);
  for (const auto& [name, part] : file.parts) {
    if (file.tensors.contains(name)) fail_saved_twice(name);
  }
  return file;
}

/// Returns one line for each variable that is missing from `tensors` or has a different shape or
/// dtype there.
std::vector<std::string> find_misfits(const std::vector<Variable>& variables,
                                      const TensorKinds& tensors) {
  const auto by_variable = tensors_by_variable(variables, tensors);
  std::vector<std::string> misfits;
  for (const Variable& variable : variables) {
    const std::vector<std::string>& names = by_variable.at(variable.name());
    if (names.empty()) misfits.push_back(concat("variable '", variable.name(), "' is missing"));
    for (const std::string& name : names) {
      const TensorKind& tensor = tensors.at(name);
      if (name == concat(variable.name(), kUpdates)) continue;
      if (tensor.shape == variable.shape() && tensor.dtype == variable.dtype()) continue;
      misfits.push_back(concat("'", name, "': expected ", variable.dtype(), " ", variable.shape(),
                               ", got ", tensor.dtype, " ", tensor.shape));
    }
  }
  return misfits;
}

/// Returns the names in `tensors` that do not belong to any of `variables`.
/// "<name>/replica_<number>" belongs to variable <name>.
std::vector<std::string> find_unknown(const std::vector<Variable>& variables,
                                      const TensorKinds& tensors) {
  std::set<std::string> known;
  for (const auto& [variable, names] : tensors_by_variable(variables, tensors)) {
    known.insert(names.begin(), names.end());
  }
  std::vector<std::string> unknown;
  for (const auto& [name, kind] : tensors) {
    if (!known.contains(name)) unknown.push_back(name);
  }
  return unknown;
}

/// Returns, for each weight that a layer splits across devices, its number of parts:
/// {"dense/kernel", 2} for "dense/kernel/part_0" and "dense/kernel/part_1".
std::map<std::string, int> counts_of_parts(const std::vector<std::string>& names) {
  static constexpr std::string_view kPart = "part_";
  std::map<std::string, int> counts;
  for (const std::string& name : names) {
    std::string whole;
    bool is_part = false;
    for (std::size_t at = 0; at < name.size();) {
      const std::size_t end = std::min(name.find('/', at), name.size());
      const std::string component = name.substr(at, end - at);
      at = end + 1;
      if (component.starts_with(kPart) && component.size() > kPart.size() &&
          component.find_first_not_of("0123456789", kPart.size()) == std::string::npos) {
        is_part = true;
      } else {
        whole += (whole.empty() ? "" : "/") + component;
      }
    }
    if (is_part) ++counts[whole];
  }
  return counts;
}

/// Returns one line for each weight whose number of parts in the file differs from that in the
/// model.
std::vector<std::string> find_other_parts(const std::vector<Variable>& variables,
                                          const TensorKinds& tensors) {
  std::vector<std::string> here, there;
  for (const Variable& variable : variables) here.push_back(variable.name());
  for (const auto& [name, kind] : tensors) there.push_back(name);
  const std::map<std::string, int> parts_here = counts_of_parts(here);
  std::map<std::string, int> counts_there = counts_of_parts(there);
  for (const auto& [name, count] : parts_here) counts_there.emplace(name, 0);
  std::vector<std::string> problems;
  for (const auto& [name, count] : counts_there) {
    const auto found = parts_here.find(name);
    const int expected = found == parts_here.end() ? 0 : found->second;
    if (count == expected) continue;
    const auto text = [](int parts) { return parts == 0 ? "one tensor" : concat(parts, " parts"); };
    problems.push_back(concat("'", name, "': expected ", text(expected), ", got ", text(count),
                              "; a layer that is split over devices can only be restored over "
                              "the same number of devices"));
  }
  return problems;
}

/// Throws kInvalidArgument, listing `problems`, if there are any.
void require_none(const std::vector<std::string>& problems, const std::string& who,
                  const std::string& path) {
  if (problems.empty()) return;
  const bool has_unknown = std::ranges::any_of(
      problems, [](const std::string& problem) { return problem.starts_with("unknown "); });
  fail(ErrorCode::kInvalidArgument, who, ": '", path, "' does not match this program (",
       problems.size(), problems.size() == 1 ? " problem" : " problems",
       "), so nothing was changed; found: ", join(problems, "; "),
       "; use the program and options that saved it",
       has_unknown ? ", or .ignore_unknown for unknown names" : "");
}

/// Returns the values of a part as one tensor.
Tensor joined(const TensorPart& part) {
  if (part.values.size() == 1) return part.values.front().to(Device{});
  MutableTensor all({part.count()}, part.dtype, Device{});
  std::byte* to = all.data();
  for (const Tensor& value : part.values) {
    const Tensor on_host = value.to(Device{});
    to = std::ranges::copy(on_host.bytes(), to).out;
  }
  return all.freeze();
}

/// Calls VariableStorage::restore(), or restore_part(), on all variables.
void restore_all(const std::vector<Variable>& variables, const CheckpointFile& file) {
  const TensorLookup lookup = [&](const std::string& name) {
    const auto found = file.tensors.find(name);
    return found == file.tensors.end() ? Tensor() : found->second;
  };
  for (const Variable& variable : variables) {
    const auto part = file.parts.find(variable.name());
    if (part == file.parts.end()) {
      variable.storage().restore(lookup);
    } else {
      variable.storage().restore_part(joined(part->second));
    }
  }
}

/// Adds the providers' tensors, each under "<provider>/<tensor name>".
void add_provided(const TensorProviders& providers, TensorMap& tensors) {
  for (const auto& [provider_name, provider] : providers) {
    for (NamedTensor& tensor : provider.save()) {
      std::string name = concat(provider_name, '/', tensor.name);
      if (tensors.emplace(name, std::move(tensor.value)).second) continue;
      fail(ErrorCode::kInvalidArgument, "Checkpoint::save: two tensors are saved as '", name,
           "'; expected different names");
    }
  }
}

void restore_providers(const TensorProviders& providers, const TensorMap& tensors) {
  for (const auto& [provider_name, provider] : providers) {
    provider.restore([&, prefix = provider_name + "/"](const std::string& name) {
      const auto found = tensors.find(prefix + name);
      return found == tensors.end() ? Tensor() : found->second;
    });
  }
}

/// Returns the current values. Tensors share the variables' buffers: nothing is copied until a
/// variable is written.
CheckpointFile current_values(const std::vector<Variable>& variables, const StateMap& states,
                              const TensorProviders& providers, internal::SavedAs form) {
  CheckpointFile file = saved(variables, form);
  add_provided(providers, file.tensors);
  for (const auto& [name, provider] : states) file.states[name] = provider.save();
  return file;
}

void set_all(const CheckpointFile& file, const std::vector<Variable>& variables,
             const StateMap& states, const TensorProviders& providers) {
  restore_all(variables, file);
  restore_providers(providers, file.tensors);
  for (const auto& [name, provider] : states) provider.restore(file.states.at(name));
}

/// Sets all values or, if setting one fails, none.
void take_over(const CheckpointFile& file, const std::vector<Variable>& variables,
               const StateMap& states, const TensorProviders& providers) {
  const CheckpointFile before =
      current_values(variables, states, providers, internal::SavedAs::kParts);
  try {
    set_all(file, variables, states, providers);
  } catch (...) {
    try {
      set_all(before, variables, states, providers);
    } catch (const std::exception& error) {
      log(LogLevel::kError,
          concat("Checkpoint::restore: cannot set the previous values: ", error.what()));
    } catch (...) {
      log(LogLevel::kError, "Checkpoint::restore: cannot set the previous values");
    }
    throw;
  }
}

bool is_provided(const TensorProviders& providers, const std::string& name) {
  return std::any_of(providers.begin(), providers.end(),
                     [&](const auto& each) { return name.starts_with(each.first + "/"); });
}

/// Returns the tensors and states of the file that belong to none of the variables, states and
/// providers; nullptr if there are none.
std::shared_ptr<const CheckpointFile> rest_of(const CheckpointFile& file,
                                              const std::vector<Variable>& variables,
                                              const StateMap& states,
                                              const TensorProviders& providers) {
  const auto rest = std::make_shared<CheckpointFile>();
  rest->info = file.info;
  for (const std::string& name : find_unknown(variables, kinds_in(file))) {
    if (!is_provided(providers, name)) rest->tensors.emplace(name, file.tensors.at(name));
  }
  for (const auto& [name, value] : file.states) {
    if (!states.contains(name)) rest->states.emplace(name, value);
  }
  return rest->tensors.empty() && rest->states.empty() ? nullptr : rest;
}

std::vector<std::string> find_problems(const CheckpointFile& file,
                                       const std::vector<Variable>& variables,
                                       const StateMap& states, const TensorProviders& providers,
                                       const RestoreOptions& options) {
  const TensorKinds kinds = kinds_in(file);
  std::vector<std::string> problems = find_misfits(variables, kinds);
  if (!problems.empty()) {
    std::ranges::copy(find_other_parts(variables, kinds), std::back_inserter(problems));
  }
  if (!options.ignore_unknown) {
    for (const std::string& name : find_unknown(variables, kinds)) {
      if (!is_provided(providers, name)) problems.push_back(concat("unknown tensor '", name, "'"));
    }
  }
  for (const auto& [name, provider] : states) {
    if (!file.states.contains(name)) problems.push_back(concat("state '", name, "' is missing"));
  }
  for (const auto& [name, value] : file.states) {
    if (options.ignore_unknown || states.contains(name)) continue;
    problems.push_back(concat("unknown state '", name, "'"));
  }
  return problems;
}

/// Throws kInvalidArgument if a function is missing, and kAlreadyExists if `name` is among `known`.
template <class Provider>
void require_new(const std::map<std::string, Provider>& known, const std::string& name,
                 const Provider& provider, const char* who, const char* kind) {
  if (!provider.save || !provider.restore) {
    fail(ErrorCode::kInvalidArgument, who, ": ", kind, " '", name,
         "': expected functions to save and to restore it, got ",
         provider.save      ? "save alone"
         : provider.restore ? "restore alone"
                            : "none",
         "; pass both");
  }
  if (known.contains(name)) {
    fail(ErrorCode::kAlreadyExists, who, ": expected a new name, got ", kind, " '", name,
         "' again; try another name");
  }
}

void warn_of_other_bits(const std::string& path, const std::string& saved_with) {
  const std::string here = numerics_fingerprint();
  if (saved_with.empty() || saved_with == here) return;
  log_warning(concat("Checkpoint::restore: ", path, " was saved with '", saved_with,
                     "', but this program computes with '", here,
                     "': training continues, but not bit-identically; set TUTTI_MAX_ISA"));
}

}  // namespace

Checkpoint::Checkpoint(std::vector<Variable> variables, CheckpointOptions options)
    : options_(options) {
  add(variables);
}

void Checkpoint::add(const std::vector<Variable>& variables) {
  std::vector<Variable> all = variables_, added;
  for (const Variable& variable : variables) {
    const auto same = std::find_if(all.begin(), all.end(), [&](const Variable& other) {
      return other.name() == variable.name();
    });
    if (same == all.end()) {
      all.push_back(variable);
      added.push_back(variable);
    } else if (!(*same == variable)) {
      fail(ErrorCode::kAlreadyExists, "Checkpoint::add: there are two variables called '",
           variable.name(), "'; expected different names; use VariableOptions::name");
    }
  }
  restore_deferred_items(added);
  variables_ = std::move(all);
}

void Checkpoint::add_state(std::string name, StateProvider provider) {
  require_new(states_, name, provider, "Checkpoint::add_state", "state");
  restore_deferred_items({}, {{name, provider}});
  states_.emplace(std::move(name), std::move(provider));
}

void Checkpoint::add_tensors(std::string name, TensorProvider provider) {
  require_new(tensors_, name, provider, "Checkpoint::add_tensors", "provider");
  restore_deferred_items({}, {}, {{name, provider}});
  tensors_.emplace(std::move(name), std::move(provider));
}

void Checkpoint::restore_deferred_items(const std::vector<Variable>& variables,
                                        const States& states, const Tensors& tensors) {
  if (!waiting_) return;
  require_none(find_problems(*waiting_, variables, states, tensors, {.ignore_unknown = true}),
               "Checkpoint: deferred restore", waiting_->info.path);
  take_over(*waiting_, variables, states, tensors);
  waiting_ = rest_of(*waiting_, variables, states, tensors);
}

std::vector<std::string> Checkpoint::waiting() const {
  std::vector<std::string> names;
  if (!waiting_) return names;
  for (const auto& [name, tensor] : waiting_->tensors) names.push_back(name);
  for (const auto& [name, state] : waiting_->states) names.push_back(name);
  return names;
}

void Checkpoint::set_about(std::string key, Json value) {
  about_.set(std::move(key), std::move(value));
}

CheckpointFile Checkpoint::values(std::int64_t step, internal::SavedAs form) const {
  if (waiting_) {
    log_warning_once(concat(
        "Checkpoint: '", waiting().front(), "' of ", waiting_->info.path,
        " will be missing from the new checkpoint: nothing in this program has that name yet"));
  }
  CheckpointFile file = current_values(variables_, states_, tensors_, form);
  file.info.step = step;
  file.info.about = about_;
  return file;
}

void Checkpoint::save(const std::string& path, std::int64_t step,
                      const SourceLocation& where) const {
  const CallSite site(where);
  const CheckpointFile file = values(step);
  if (options_.writes) write_file_atomically(path, internal::format_checkpoint_file(file));
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

CheckpointInfo Checkpoint::restore(const CheckpointSnapshot& snapshot,
                                   RestoreOptions options) const {
  const std::string& path = snapshot.values().info.path;
  return take(snapshot.values(), path.empty() ? "a snapshot" : path, options);
}

CheckpointInfo Checkpoint::take(const CheckpointFile& file, const std::string& source,
                                RestoreOptions options) const {
  require_none(find_problems(file, variables_, states_, tensors_, options), "Checkpoint::restore",
               source);
  take_over(file, variables_, states_, tensors_);
  warn_of_other_bits(source, file.info.numerics);
  return file.info;
}

CheckpointInfo Checkpoint::restore(const std::string& path, RestoreOptions options,
                                   const SourceLocation& where) const {
  const CallSite site(where);
  return *restore_found([&](const ReadPath& read) { return std::optional(read(path)); },
                        [&](const std::string&) { return path; }, std::nullopt, options);
}

CheckpointInfo Checkpoint::restore_deferred(const std::string& path, const SourceLocation& where) {
  const CallSite site(where);
  const auto file = file_of([&](const ReadPath& read) { return std::optional(read(path)); });
  const CheckpointInfo info = take(*file, file->info.path, {.ignore_unknown = true});
  waiting_ = rest_of(*file, variables_, states_, tensors_);
  return info;
}

std::optional<CheckpointFile> Checkpoint::file_of(const Reader& find) const {
  const auto read = [&] { return find(internal::read_checkpoint); };
  return options_.from_writer ? internal::read_by_writer(read, options_) : read();
}

std::map<std::string, TensorPart> Checkpoint::own_parts() const {
  std::map<std::string, TensorPart> parts;
  for (const Variable& variable : variables_) {
    auto part = variable.storage().save_part();
    if (part && part->has_others) parts.emplace(part->name, std::move(*part));
  }
  return parts;
}

std::optional<CheckpointInfo> Checkpoint::restore_found(const Reader& find, const OwnPath& own_path,
                                                        std::optional<bool> sharded,
                                                        RestoreOptions options) const {
  std::optional<CheckpointFile> file;
  internal::ShardedRead reading{{}, own_path, sharded == true};
  if (options_.connect && sharded.value_or(true)) reading.wanted = own_parts();
  if (reading.wanted.empty()) {
    file = file_of(find);
  } else {
    const internal::CheckpointWorker self{options_.worker, options_.connect()};
    file = internal::read_sharded(find, reading, self, options_);
  }
  if (!file) return std::nullopt;
  return take(*file, file->info.path, options);
}

CheckpointInfo Checkpoint::restore_from_bytes(std::string_view bytes, const std::string& source,
                                              RestoreOptions options) const {
  return take(internal::parse_checkpoint_file(bytes, source), source, options);
}

void save_weights(const std::string& path, const std::vector<Variable>& variables,
                  CheckpointOptions options, const SourceLocation& where) {
  Checkpoint(variables, options).save(path, 0, where);
}

}  // namespace tutti
