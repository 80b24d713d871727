// Servers of the model: changes and orders, and what they keep of them.
// SPDX-License-Identifier: Apache-2.0
#include "tests/strategy/parameter_server/protocol_servers.h"

#include <algorithm>
#include <utility>

namespace tutti::testing {
namespace {

using Saved = ModelServer::Saved;

internal::ChangeIdentity identity_of(const ModelChange& change) {
  return {
      change.term, {internal::UpdateStream::Kind::kClosure, change.number, 0}, 0, 1, change.below};
}

/// Applies what a log brings to an older state, as the server did. Returns "" or why it was
/// refused.
std::string apply_again(Saved& state, const ModelChange& change, PlantedBug bug) {
  const internal::ChangeIdentity identity = identity_of(change);
  try {
    const bool is_new = state.table.num_applied_before(identity) == 0;
    if (is_new || bug == PlantedBug::kReplayWithoutTable) ++state.counts[change.content];
    state.table.note_applied(identity);
    return "";
  } catch (const Error& error) {
    return concat("what was applied is refused when it is applied again: ", error.message());
  }
}

}  // namespace

internal::ChangeIdentity identity_of(const ModelMessage& push) {
  return {push.term, {internal::UpdateStream::Kind::kClosure, push.number, 0}, 0, 1, push.below};
}

void fence(internal::AppliedTable& table, std::uint64_t term) {
  internal::ChangeIdentity nothing;
  nothing.term = term;
  table.note_applied(nothing);
}

/// Also what came before is logged again: the table finds that out when the log is read. What the
/// log says already, in all its parts, is left out: fewer states, the same behaviours.
std::string ModelServers::take_push(const ModelMessage& push) {
  ModelServer& own = server(push.server);
  internal::ChangeIdentity identity = identity_of(push);
  if (options_.bug == PlantedBug::kOldTermAccepted) identity.term = 0;
  bool is_new = false;
  try {
    is_new = own.table.num_applied_before(identity) == 0;
    if (is_new) ++own.counts[push.content];
    own.table.note_applied(identity);
  } catch (const Error& error) {
    return error.message();
  }
  const bool is_early = options_.bug == PlantedBug::kAcknowledgeBeforeKept;
  auto& log = is_early ? own.late : own.log;
  const bool says_nothing = !is_new && std::ranges::any_of(log, [&](const ModelChange& each) {
    return each.term >= push.term && each.below >= push.below;
  });
  if (says_nothing && options_.bug != PlantedBug::kReplayWithoutTable) return "";
  log.push_back({push.number, push.content, push.term, push.below, own.saved.back().cut});
  return "";
}

void ModelServers::keep_first(std::size_t s) {
  ModelServer& own = server(s);
  own.log.push_back(own.late.front());
  own.late.erase(own.late.begin());
}

bool ModelServers::take_fence(const ModelMessage& order) {
  ModelServer& own = server(order.server);
  if (order.term < own.table.term()) return false;
  fence(own.table, order.term);
  return true;
}

/// One that comes late or again must not undo what was done since.
bool ModelServers::take_load(const ModelMessage& order) {
  ModelServer& own = server(order.server);
  if (order.term < own.loaded_term) return false;
  if (own.is_up && order.term == own.loaded_term) return true;
  const auto saved = std::ranges::find(own.saved, order.cut, &Saved::cut);
  state_.violation =
      saved == own.saved.end() ? "a cut that was taken is not there" : replay_log(own, *saved);
  if (!state_.violation.empty()) return false;
  if (options_.bug == PlantedBug::kLogGoesOnBeforeVoidCut) {
    std::erase_if(own.saved, [&](const Saved& each) { return each.cut > order.cut; });
  }
  own.is_up = true;
  own.loaded_term = order.term;
  fence(own.table, order.term);
  return true;
}

std::string ModelServers::replay_log(ModelServer& own, const Saved& saved) const {
  Saved state = saved;
  if (options_.bug == PlantedBug::kSnapshotWithoutTable) state.table = {};
  std::vector<ModelChange> log = own.log;
  if (options_.bug == PlantedBug::kLogGoesOnBeforeVoidCut) {
    std::ranges::stable_sort(log, {}, &ModelChange::after_cut);
  }
  for (const ModelChange& change : log) {
    if (change.after_cut < saved.cut) continue;
    if (auto refusal = apply_again(state, change, options_.bug); !refusal.empty()) return refusal;
  }
  own.table = state.table;
  own.counts = state.counts;
  return "";
}

bool ModelServers::take_snapshot(const ModelMessage& order) {
  ModelServer& own = server(order.server);
  if (order.term != own.table.term()) return false;
  const auto saved = std::ranges::find(own.saved, order.cut, &Saved::cut);
  if (saved == own.saved.end()) {
    own.saved.push_back({order.cut, own.table, own.counts});
  } else if (options_.bug == PlantedBug::kLateSnapshotOverwrites) {
    *saved = {order.cut, own.table, own.counts};
  }
  return true;
}

void ModelServers::kill(std::size_t s) {
  ModelServer& dead = server(s);
  ModelServer fresh;
  fresh.is_up = false;
  fresh.loaded_term = dead.loaded_term;  // orders are for one life: none of before comes again
  fresh.saved = std::move(dead.saved);
  fresh.log = std::move(dead.log);
  dead = std::move(fresh);
}

}  // namespace tutti::testing
