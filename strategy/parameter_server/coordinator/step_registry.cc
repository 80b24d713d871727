// Registration, nearest names, and differences between the lists of two tasks.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/coordinator/step_registry.h"

#include <algorithm>
#include <numeric>
#include <sstream>

namespace tutti::internal {
namespace {

/// Levenshtein distance.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
    }
  }
  return row.back();
}

std::vector<std::string> nearest(std::vector<std::string> names, std::string_view wanted) {
  std::ranges::stable_sort(names, {},
                           [&](const std::string& name) { return distance(name, wanted); });
  names.resize(std::min<std::size_t>(names.size(), 3));
  return names;
}

/// Returns the lines by name, the part before the first '(' or ':'.
std::map<std::string, std::string> lines_by_name(const std::string& text) {
  std::map<std::string, std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    lines[line.substr(0, line.find_first_of("(:"))] = line;
  }
  return lines;
}

}  // namespace

void StepRegistry::add(StepDefinition definition) {
  if (definition.name.empty() || definition.name.find_first_of("(:\n") != std::string::npos) {
    fail(ErrorCode::kInvalidArgument, "define: '", definition.name,
         "' is no name of a step; expected a text without (, : and line ends");
  }
  MutexLock lock(mutex_);
  const auto [place, is_new] = steps_.try_emplace(definition.name, definition);
  if (!is_new) {
    fail(ErrorCode::kAlreadyExists, "define: the step '", definition.name,
         "' is defined already, as ", place->second.signature, ", and now as ",
         definition.signature, "; try another name");
  }
}

const StepDefinition& StepRegistry::find(std::string_view name) const {
  MutexLock lock(mutex_);
  const auto found = steps_.find(name);
  if (found != steps_.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [each, definition] : steps_) names.push_back(each);
  fail(ErrorCode::kNotFound, "schedule: no step '", name, "' is defined; the nearest of ",
       names.size(), " names: ", join(nearest(names, name)),
       "; try define() on every task, before start()");
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
    fail(ErrorCode::kNotFound, "per-worker value ", id, ": is not defined here; expected below ",
         resources_.size(), "; try to make it on every task, before start()");
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
  const auto own = lines_by_name(own_text), other = lines_by_name(other_text);
  std::string differences;
  for (const auto& [name, line] : own) {
    const auto found = other.find(name);
    if (found == other.end()) {
      differences += concat("\n  ", other_name, " lacks ", line);
    } else if (found->second != line) {
      differences +=
          concat("\n  ", own_name, " has ", line, "\n  ", other_name, " has ", found->second);
    }
  }
  for (const auto& [name, line] : other) {
    if (!own.contains(name)) differences += concat("\n  ", own_name, " lacks ", line);
  }
  fail(ErrorCode::kFailedPrecondition, "steps: ", own_name, " and ", other_name,
       " do not define the same; expected one program on all tasks:", differences);
}

}  // namespace tutti::internal
