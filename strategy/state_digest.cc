// Comparing variables over workers: what is made, digests later, and whose differs.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/state_digest.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/core/hash.h"

namespace tutti::internal {
namespace {

constexpr const char* kGone = "-";

std::string digest_of(std::span<const std::byte> bytes) {
  Hasher hasher;
  hasher.update(bytes);
  return hasher.hex_digest().substr(0, 16);
}

/// The components of one worker are equal too; if not, all are listed.
std::string digest_of(const DistributedStorage& variable) {
  std::vector<std::string> digests;
  for (const Tensor& component : variable.local_components()) {
    digests.push_back(digest_of(component.to(Device{}).bytes()));
  }
  return std::ranges::count(digests, digests.front()) == std::ssize(digests) ? digests.front()
                                                                             : join(digests, "/");
}

/// "worker 1 has 0123, worker 0, 2 has 4567": the smallest party first.
std::string parties_of(const std::vector<std::string>& digests) {
  std::map<std::string, std::vector<std::size_t>> workers_of;
  for (std::size_t w = 0; w < digests.size(); ++w) workers_of[digests[w]].push_back(w);
  std::vector<std::pair<std::string, std::vector<std::size_t>>> parties(workers_of.begin(),
                                                                        workers_of.end());
  std::ranges::stable_sort(parties, {}, [](const auto& party) { return party.second.size(); });
  std::vector<std::string> words;
  for (const auto& [digest, workers] : parties) {
    words.push_back(concat("worker ", join(workers), " has ", digest));
  }
  return join(words);
}

}  // namespace

StateDigest::StateDigest(std::string who, int every) : who_(std::move(who)), every_(every) {
  if (every_ >= 0) return;
  fail(ErrorCode::kInvalidArgument, who_, ": digest_steps; expected 0 (never) or more, got ",
       every_);
}

void StateDigest::add(const std::shared_ptr<const DistributedStorage>& variable) {
  if (every_ == 0 || variable->options().allow_divergent) return;
  variables_.push_back({variable->name(), variable});
}

std::vector<std::string> StateDigest::digests() const {
  std::vector<std::string> all;
  for (const Watched& each : variables_) {
    const auto variable = each.variable.lock();
    all.push_back(variable ? digest_of(*variable) : kGone);
  }
  return all;
}

void StateDigest::compare_when_due(std::uint64_t num_steps, WorkerTeam& team) const {
  if (every_ == 0 || num_steps % static_cast<std::uint64_t>(every_) != 0) return;
  const std::string own = join(digests(), " ");
  const std::vector<std::string> totals =
      team.gather_texts(digest_of(std::as_bytes(std::span(own))), "digest of the variables");
  if (std::ranges::count(totals, totals.front()) == std::ssize(totals)) return;
  report(num_steps, team.gather_texts(own, "digests of each variable"));
}

/// Returns when no variable differs that all workers have: one may live longer on some of them.
void StateDigest::report(std::uint64_t num_steps, const std::vector<std::string>& lists) const {
  std::vector<std::istringstream> words(lists.begin(), lists.end());
  for (const Watched& each : variables_) {
    std::vector<std::string> digests(words.size());
    for (std::size_t w = 0; w < words.size(); ++w) words[w] >> digests[w];
    const bool all_have_it = std::ranges::count(digests, kGone) == 0;
    const bool are_equal = std::ranges::count(digests, digests.front()) == std::ssize(digests);
    const bool within = digests.front().find('/') != std::string::npos;
    if (!all_have_it || (are_equal && !within)) continue;
    fail(ErrorCode::kDataLoss, who_, ": after step ", num_steps, " the workers' values of '",
         each.name, "' differ: ", parties_of(digests),
         "; expected the same bits on all; memory has lost a bit, or a step depends on the worker; "
         "try the last checkpoint on another machine");
  }
}

std::string describe_variable(const std::string& name, const Tensor& initial_value) {
  const Tensor on_host = initial_value.to(Device{});
  Hasher hasher;
  hasher.update(on_host.bytes());
  return concat("'", name, "' ", initial_value.dtype(), " ", initial_value.shape(), ", values ",
                hasher.hex_digest());
}

void require_same_variable(std::string_view who, WorkerTeam& team, const std::string& description) {
  const std::vector<std::string> all = team.gather_texts(description, "create a variable");
  for (std::size_t w = 1; w < all.size(); ++w) {
    if (all[w] == all[0]) continue;
    fail(ErrorCode::kInvalidArgument, who, ": the workers make different variables: worker 0 ",
         all[0], "; worker ", w, " ", all[w],
         "; expected the same variables in the same order with the same initial values; try the "
         "same program and seed on all workers");
  }
}

}  // namespace tutti::internal
