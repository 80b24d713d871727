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

/// Applies what a log or a queue brings to a copy or an older state, as the server did. Returns ""
/// or why it was refused.
std::string apply_again(ModelServer::Variables& variables, const ModelChange& change,
                        PlantedBug bug) {
  const internal::ChangeIdentity identity = identity_of(change);
  try {
    const bool is_new = variables.table.num_applied_before(identity) == 0;
    if (is_new || bug == PlantedBug::kReplayWithoutTable) ++variables.counts[change.content];
    variables.table.note_applied(identity);
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

bool keeps_confirmed(const ModelState& state, const ModelMessage& restore) {
  return restore.term != state.ledger.rollback_term();
}

bool is_from_copy(const ModelOptions& options, const ModelState& state,
                  const ModelMessage& restore) {
  return options.durability == Durability::kReplicated &&
         restore.kind == ModelMessage::Kind::kRestore && keeps_confirmed(state, restore) &&
         restore.term == state.ledger.term() && !state.servers[restore.server].is_up;
}

bool can_keep_first(const ModelOptions& options, const ModelState& state, std::size_t server) {
  const ModelServer& own = state.servers[server];
  if (!own.is_up || own.sent.empty()) return false;
  if (options.durability == Durability::kLogged) return true;
  const ModelServer& keeper = state.servers[keeper_of(state, server)];
  return keeper.is_up && keeper.has_copy;
}

ModelServers::Answer ModelServers::take_push(const ModelMessage& push, bool is_answered) {
  ModelServer& own = server(push.server);
  internal::ChangeIdentity identity = identity_of(push);
  if (options_.bug == PlantedBug::kOldTermAccepted) identity.term = 0;
  bool is_new = false;
  try {
    is_new = own.table.num_applied_before(identity) == 0;
    if (is_new) ++own.counts[push.content];
    own.table.note_applied(identity);
  } catch (const Error& error) {
    return {false, error.message()};
  }
  return {is_kept_at_once(push, is_new, is_answered) && is_answered, ""};
}

/// Also what came before, for the first may still be on its way to the copy.
bool ModelServers::is_kept_at_once(const ModelMessage& push, bool is_new, bool is_answered) {
  if (options_.durability == Durability::kSnapshot) return true;
  if (!is_new && options_.bug == PlantedBug::kRepeatedNotKept) return true;
  ModelServer& own = server(push.server);
  ModelChange change{
      push.number, push.attempt, push.content, push.term, push.below, own.saved.back().cut, 0};
  const bool is_early = options_.bug == PlantedBug::kAcknowledgeBeforeKept;
  if (options_.durability == Durability::kLogged && !is_early) {
    own.log.push_back(change);
    return true;
  }
  change.is_awaited = is_answered && !is_early ? 1 : 0;
  own.sent.push_back(change);
  return is_early;
}

ModelChange ModelServers::keep_first(std::size_t s) {
  ModelServer& own = server(s);
  const ModelChange change = own.sent.front();
  own.sent.erase(own.sent.begin());
  if (options_.durability == Durability::kLogged) {
    own.log.push_back(change);
  } else {
    state_.violation = apply_again(server(keeper_of(state_, s)).copy, change, options_.bug);
  }
  return change;
}

bool ModelServers::take_begin_copy(const ModelMessage& order, std::vector<ModelChange>& kept) {
  ModelServer& own = server(order.server);
  if (order.term < own.table.term()) return false;
  ModelServer& keeper = server(keeper_of(state_, order.server));
  keeper.has_copy = true;
  keeper.copy = {own.table, own.counts};
  kept = std::exchange(own.sent, {});
  return true;
}

bool ModelServers::take_fence(const ModelMessage& order) {
  ModelServer& own = server(order.server);
  if (order.term < own.table.term()) return false;
  fence(own.table, order.term);
  return true;
}

/// One that comes late or again must not undo what was done since.
bool ModelServers::take_restore(const ModelMessage& order) {
  ModelServer& own = server(order.server);
  if (order.term < own.restored_term) return false;
  if (own.is_up && order.term == own.restored_term) return true;
  state_.violation = take_state(order);
  if (!state_.violation.empty()) return false;
  if (options_.bug == PlantedBug::kLogGoesOnBeforeVoidCut) {
    std::erase_if(own.saved, [&](const Saved& each) { return each.cut > order.cut; });
  }
  own.is_up = true;
  own.sent.clear();  // of what is undone, or of a process that is gone
  own.restored_term = order.term;
  fence(own.table, order.term);
  return true;
}

/// "", or why it cannot have the state that it is told to take.
std::string ModelServers::take_state(const ModelMessage& order) {
  ModelServer& own = server(order.server);
  if (is_from_copy(options_, state_, order)) {
    const ModelServer::Variables& copy = server(keeper_of(state_, order.server)).copy;
    own.table = copy.table;
    own.counts = copy.counts;
    return "";
  }
  const auto saved = std::ranges::find(own.saved, order.cut, &Saved::cut);
  if (saved == own.saved.end()) return "a cut that was taken is not there";
  if (options_.durability == Durability::kLogged && keeps_confirmed(state_, order)) {
    return replay_log(own, *saved);
  }
  own.table =
      options_.bug == PlantedBug::kSnapshotWithoutTable ? internal::AppliedTable() : saved->table;
  own.counts = saved->counts;
  return "";
}

std::string ModelServers::replay_log(ModelServer& own, const Saved& saved) const {
  ModelServer::Variables variables{saved.table, saved.counts};
  std::vector<ModelChange> log = own.log;
  if (options_.bug == PlantedBug::kLogGoesOnBeforeVoidCut) {
    std::ranges::stable_sort(log, {}, &ModelChange::after_cut);
  }
  for (const ModelChange& change : log) {
    if (change.after_cut < saved.cut) continue;
    if (auto refusal = apply_again(variables, change, options_.bug); !refusal.empty()) {
      return refusal;
    }
  }
  own.table = variables.table;
  own.counts = variables.counts;
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
  fresh.restored_term = dead.restored_term;  // stands beside what was saved
  fresh.saved = std::move(dead.saved);
  fresh.log = std::move(dead.log);
  dead = std::move(fresh);
}

}  // namespace tutti::testing
