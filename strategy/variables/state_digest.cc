// Comparing variables over workers: what is made, digests later, and whose differs.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/variables/state_digest.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/hash.h"
#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

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
  return std::ranges::count(digests, digests.front()) == std::ssize(digests)
             ? digests.front()
             : join(digests, ConsistencyCheck::kBetweenComponents);
}

}  // namespace

StateDigest::StateDigest(std::string who, int every) : who_(std::move(who)), every_(every) {
  if (every_ >= 0) return;
  fail(ErrorCode::kInvalidArgument, who_, ": digest_steps; expected 0 (never) or more, got ",
       every_);
}

void StateDigest::add(const std::shared_ptr<const DistributedStorage>& variable) {
  if (every_ == 0 || variable->options().allow_divergent) return;
  variables_.push_back(variable);
}

void StateDigest::compare_when_due(std::uint64_t num_steps, WorkerTeam& team) const {
  if (every_ == 0 || num_steps % static_cast<std::uint64_t>(every_) != 0) return;
  for (const std::weak_ptr<const DistributedStorage>& each : variables_) {
    const auto variable = each.lock();
    if (!variable) continue;
    const std::string digest = digest_of(*variable);
    team.check()->note(ConsistencyCheck::Kind::kValue, variable->name(),
                       std::as_bytes(std::span(digest)), digest);
  }
  try {
    team.compare_digests();
  } catch (const Error& error) {
    throw error.with_context(concat(who_, ": after step ", num_steps));
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
