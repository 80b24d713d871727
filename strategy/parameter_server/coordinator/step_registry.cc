// Implements StepRegistry: registration, and the first difference between two tasks' lists.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/coordinator/step_registry.h"

#include <algorithm>
#include <sstream>

#include "core/names.h"

namespace tutti::internal {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}  // namespace

void StepRegistry::add(StepDefinition definition) {
  if (definition.name.empty() || definition.name.find_first_of("(:\n") != std::string::npos) {
    fail(ErrorCode::kInvalidArgument, "define: '", definition.name,
         "': expected a non-empty name without '(', ':' or line breaks");
  }
  MutexLock lock(mutex_);
  const auto [place, is_new] = steps_.try_emplace(definition.name, definition);
  if (!is_new) {
    fail(ErrorCode::kAlreadyExists, "define: the step '", definition.name,
         "' is already defined as ", place->second.signature, ", and cannot be redefined as ",
         definition.signature, "; try another name");
  }
}

const StepDefinition& StepRegistry::find(std::string_view name) const {
  MutexLock lock(mutex_);
  const auto found = steps_.find(name);
  if (found != steps_.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [each, definition] : steps_) names.push_back(each);
  fail(ErrorCode::kNotFound, "schedule: expected one of ", choices(names, name), ", got '", name,
       "'; call define() on every task, before start()");
}

std::uint64_t StepRegistry::define_resource(
    std::string type, std::string text,
    std::function<std::shared_ptr<void>(int, std::uint64_t)> make) {
  MutexLock lock(mutex_);
  const std::uint64_t id = resources_.size();
  resources_[id] = {id, std::move(type), std::move(text), std::move(make)};
  return id;
}

ResourceDefinition StepRegistry::find_resource(std::uint64_t id) const {
  MutexLock lock(mutex_);
  const auto found = resources_.find(id);
  if (found == resources_.end()) {
    fail(ErrorCode::kNotFound, "per-worker value ", id,
         " is not defined here; this task defines only ", resources_.size(),
         " per-worker values; create it on every task before start()");
  }
  return found->second;
}

std::string StepRegistry::text() const {
  MutexLock lock(mutex_);
  std::string text;
  for (const auto& [name, step] : steps_) text += step.signature + "\n";
  for (const auto& [id, resource] : resources_) {
    text += concat("per-worker value ", id, ": ", resource.type, ", ", resource.text, "\n");
  }
  return text;
}

void StepRegistry::require_same(const std::string& own_text, const std::string& own_name,
                                const std::string& other_text, const std::string& other_name) {
  if (own_text == other_text) return;
  const std::vector<std::string> own = lines_of(own_text), other = lines_of(other_text);
  const auto [first, second] = std::ranges::mismatch(own, other);
  fail(ErrorCode::kFailedPrecondition, "steps: ", own_name, " defines ",
       first == own.end() ? "nothing more" : *first, ", but ", other_name, " defines ",
       second == other.end() ? "nothing more" : *second,
       "; expected the same program on all tasks");
}

}  // namespace tutti::internal
