// Frontier after frontier; of older states a hash, a parent and a step are kept.
// SPDX-License-Identifier: Apache-2.0
#include "tests/strategy/parameter_server/model_checker.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>
#include <utility>

namespace tutti::testing {
namespace {

struct StateHash {
  std::uint64_t low = 0, high = 0;
  bool operator==(const StateHash&) const = default;
};

std::uint64_t mixed(std::uint64_t x) {  // splitmix64's finalizer
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

StateHash hash_of(const std::vector<std::byte>& bytes) {
  StateHash hash{bytes.size(), ~bytes.size()};
  for (std::size_t i = 0; i < bytes.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, std::min<std::size_t>(8, bytes.size() - i));
    hash.low = mixed(hash.low + word + 0x9e3779b97f4a7c15ULL);
    hash.high = mixed(hash.high ^ (word * 0xd6e8feb86659fd93ULL + 0x2545f4914f6cdd1dULL));
  }
  return hash;
}

struct HashOfHash {
  std::size_t operator()(const StateHash& hash) const { return hash.low; }
};

/// How a state was reached first: the step is the ordinal among its parent's.
struct Origin {
  std::uint32_t parent = 0;
  std::uint32_t step = 0;
};

class Search {
 public:
  Search(const ModelOptions& options, std::size_t most_states)
      : model_(options), most_states_(most_states) {}

  ModelCheckResult run() {
    ModelState first = model_.initial();
    note(first, {0, 0});
    std::vector<std::pair<std::uint32_t, ModelState>> frontier, next;
    frontier.emplace_back(0, std::move(first));
    while (!frontier.empty()) {
      next.clear();
      for (auto& [id, state] : frontier) {
        expand(id, state, next);
        if (!result_.violation.empty() || origins_.size() >= most_states_) return finish(false);
        state = ModelState();  // its memory
      }
      if (!next.empty()) ++result_.depth;
      frontier.swap(next);
    }
    return finish(true);
  }

 private:
  bool note(const ModelState& state, Origin origin) {
    if (!seen_.insert(hash_of(state.bytes())).second) return false;
    origins_.push_back(origin);
    return true;
  }

  void expand(std::uint32_t id, const ModelState& state,
              std::vector<std::pair<std::uint32_t, ModelState>>& next) {
    std::uint32_t ordinal = 0;
    const bool can_go_on = model_.each_successor(state, [&](const ModelStep&, ModelState&& after) {
      const std::uint32_t step = ordinal++;
      ++result_.num_steps;
      if (!result_.violation.empty()) return;
      std::string violation = model_.violation(after);
      const bool is_new = note(after, {id, step});
      if (!violation.empty()) {
        // (A step into a state that was sound when it was seen first is at fault itself.)
        if (!is_new) origins_.push_back({id, step});
        return blame(std::move(violation), static_cast<std::uint32_t>(origins_.size() - 1));
      }
      if (is_new) {
        next.emplace_back(static_cast<std::uint32_t>(origins_.size() - 1), std::move(after));
      }
    });
    if (can_go_on || !result_.violation.empty()) return;
    std::string reason = model_.why_not_ended(state);
    if (!reason.empty()) blame("nothing more can happen, but " + reason, id);
  }

  void blame(std::string violation, std::uint32_t id) {
    result_.violation = std::move(violation);
    std::vector<std::uint32_t> steps;
    for (; id != 0; id = origins_[id].parent) steps.push_back(origins_[id].step);
    std::ranges::reverse(steps);
    ModelState state = model_.initial();
    for (const std::uint32_t wanted : steps) {
      std::uint32_t ordinal = 0;
      ModelState taken;
      model_.each_successor(
          state,
          [&](const ModelStep& step, ModelState&& after) {
            if (ordinal++ != wanted) return;
            result_.trace.push_back(step.text);
            taken = std::move(after);
          },
          true);
      state = std::move(taken);
    }
  }

  ModelCheckResult finish(bool is_exhausted) {
    result_.is_exhausted = is_exhausted;
    result_.num_states = origins_.size();
    return std::move(result_);
  }

  const ProtocolModel model_;
  const std::size_t most_states_;
  std::unordered_set<StateHash, HashOfHash> seen_;
  std::vector<Origin> origins_;
  ModelCheckResult result_;
};

}  // namespace

ModelCheckResult check_model(const ModelOptions& options, std::size_t most_states) {
  return Search(options, most_states).run();
}

}  // namespace tutti::testing
