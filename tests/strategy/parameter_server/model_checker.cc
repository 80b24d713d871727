// Implements the model checker as a breadth-first search, which stores only a hash, a parent and a
// step of each visited state.
// SPDX-License-Identifier: Apache-2.0
#include "tests/strategy/parameter_server/model_checker.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "tutti/core/random.h"

namespace tutti::testing {
namespace {

/// Last step of the first path found to a state: the parent state, and the ordinal of the step
/// among the parent's steps.
struct Origin {
  std::uint32_t parent = 0;
  std::uint32_t step = 0;
};

class Search {
 public:
  explicit Search(const ModelOptions& options) : options_(options) {}

  ModelCheckResult run(std::size_t most_states) {
    std::vector<std::pair<std::uint32_t, ModelState>> frontier;
    frontier.emplace_back(0, initial_state(options_));
    (void)note(frontier.front().second, {});
    while (!frontier.empty()) {
      std::vector<std::pair<std::uint32_t, ModelState>> next;
      for (auto& [id, state] : frontier) {
        expand(id, state, next);
        if (!result_.violation.empty() || origins_.size() >= most_states) return finish(false);
        state = ModelState();  // frees the memory
      }
      if (!next.empty()) ++result_.depth;
      frontier.swap(next);
    }
    return finish(true);
  }

 private:
  bool note(const ModelState& state, Origin origin) {
    if (!seen_.insert(std::hash<std::string>()(bytes_of(state))).second) return false;
    origins_.push_back(origin);
    return true;
  }

  void expand(std::uint32_t id, const ModelState& state,
              std::vector<std::pair<std::uint32_t, ModelState>>& next) {
    bool can_go_on = false;
    std::uint32_t ordinal = 0;
    for (auto& successor : successors(options_, state, can_go_on)) {
      const Origin origin{id, ordinal++};
      ++result_.num_steps;
      std::string violation = testing::violation(successor.state);
      const bool is_new = note(successor.state, origin);
      if (!violation.empty()) return blame(std::move(violation), origin);
      if (!is_new) continue;
      next.emplace_back(static_cast<std::uint32_t>(origins_.size() - 1),
                        std::move(successor.state));
    }
    if (can_go_on) return;
    const std::string reason = why_not_ended(state);
    if (!reason.empty()) blame("only faults are possible, but " + reason, origins_[id]);
  }

  void blame(std::string violation, Origin origin) {
    result_.violation = std::move(violation);
    std::vector<std::uint32_t> steps{origin.step};
    for (; origin.parent != 0; steps.push_back(origin.step)) origin = origins_[origin.parent];
    ModelState state = initial_state(options_);
    for (; !steps.empty(); steps.pop_back()) {
      bool can_go_on = false;
      auto successor = std::move(successors(options_, state, can_go_on, true).at(steps.back()));
      result_.trace.push_back(successor.text);
      state = std::move(successor.state);
    }
  }

  ModelCheckResult finish(bool is_exhausted) {
    result_.is_exhausted = is_exhausted;
    result_.num_states = origins_.size();
    return std::move(result_);
  }

  const ModelOptions& options_;
  std::unordered_set<std::size_t> seen_;
  std::vector<Origin> origins_;
  ModelCheckResult result_;
};

}  // namespace

ModelCheckResult check_model(const ModelOptions& options, std::size_t most_states) {
  return Search(options).run(most_states);
}

ModelCheckResult walk_model(const ModelOptions& options, std::uint64_t seed, int num_walks) {
  const RandomStream random({.seed = seed});
  ModelCheckResult result;
  for (int walk = 0; walk < num_walks && result.violation.empty(); ++walk) {
    result.trace.clear();
    ModelState state = initial_state(options);
    while (result.violation.empty()) {
      bool can_go_on = false;
      auto found = successors(options, state, can_go_on, true);
      if (!can_go_on) {
        result.violation = why_not_ended(state);
        break;
      }
      auto& chosen = found[random.below(result.num_steps++, found.size())];
      state = std::move(chosen.state);
      result.trace.push_back(chosen.text);
      result.depth = std::max(result.depth, result.trace.size());
      result.violation = violation(state);
    }
  }
  return result;
}

}  // namespace tutti::testing
