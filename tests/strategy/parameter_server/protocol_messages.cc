// Messages of the model: in words, orders, and those that are over.
// SPDX-License-Identifier: Apache-2.0
#include "tests/strategy/parameter_server/protocol_messages.h"

#include <algorithm>

#include "tests/strategy/parameter_server/protocol_servers.h"

namespace tutti::testing {
namespace {

using Message = ModelMessage;
using Await = ModelState::Await;

bool is_void_push(const ModelOptions& options, const ModelState& state, const Message& m) {
  const ModelServer& server = state.servers[m.server];
  if (options.bug != PlantedBug::kOldTermAccepted && m.term < server.table.term()) return true;
  const bool is_awaited = std::ranges::any_of(state.tasks, [&](const ModelTask& task) {
    return task.number == m.number && task.attempt == m.attempt;
  });
  if (is_awaited || m.term > server.table.term()) return false;
  if (m.number < server.table.finished_below()) return true;
  internal::ChangeIdentity identity = identity_of(m);
  identity.term = 0;
  return m.below <= server.table.finished_below() && server.table.num_applied_before(identity) == 1;
}

}  // namespace

std::string to_string(const ModelMessage& m) {
  const std::string server = concat(" ps ", static_cast<int>(m.server));
  const std::string term = concat(" (term ", static_cast<int>(m.term), ")");
  switch (m.kind) {
    case Message::Kind::kPush:
      return concat("push of closure ", static_cast<int>(m.number), " attempt ",
                    static_cast<int>(m.attempt), " to", server, ", finished below ",
                    static_cast<int>(m.below), term);
    case Message::Kind::kDone:
      return concat("report that closure ", static_cast<int>(m.number), " attempt ",
                    static_cast<int>(m.attempt), " finished");
    case Message::Kind::kFence:
      return concat("fence for", server, term);
    case Message::Kind::kLoad:
      return concat("order to", server, " to load cut ", static_cast<int>(m.cut), term);
    case Message::Kind::kSnapshot:
      return concat("snapshot of", server, " for cut ", static_cast<int>(m.cut), term);
  }
  return "?";
}

ModelMessage control_message(const ModelState& state, int server) {
  Message m;
  m.server = model_byte(static_cast<std::uint64_t>(server));
  m.term = model_byte(state.ledger.term());
  switch (state.await[m.server]) {
    case Await::kFence:
      m.kind = Message::Kind::kFence;
      break;
    case Await::kLoad:
      m.kind = Message::Kind::kLoad;
      m.cut = model_byte(state.ledger.last_cut());
      break;
    case Await::kNothing:
      m.kind = Message::Kind::kSnapshot;
      m.cut = model_byte(state.ledger.last_cut_begun());
  }
  return m;
}

ModelMessage push_message(const ModelState& state, const ModelTask& task, int server) {
  Message push;
  push.server = model_byte(static_cast<std::uint64_t>(server));
  push.number = task.number, push.attempt = task.attempt, push.content = task.content;
  push.term = task.term;
  push.below = task.term == state.ledger.term() ? model_byte(state.ledger.finished_below()) : 0;
  return push;
}

bool is_void(const ModelOptions& options, const ModelState& state, const Message& m) {
  const ModelServer& server = state.servers[m.server];
  const bool is_of_present = m.term == state.ledger.term();
  switch (m.kind) {
    case Message::Kind::kDone:
      return !state.ledger.is_current(m.number, m.attempt);
    case Message::Kind::kPush:
      return server.is_up && is_void_push(options, state, m);
    case Message::Kind::kFence:
      return m.term <= server.table.term() &&
             (state.await[m.server] != Await::kFence || !is_of_present);
    case Message::Kind::kLoad:
      // One thread gives these orders: there is none of an earlier term under way.
      if (!is_of_present) return true;
      return server.is_up && m.term <= server.loaded_term && state.await[m.server] != Await::kLoad;
    case Message::Kind::kSnapshot:
      if (m.term < server.table.term()) return true;
      if (options.bug == PlantedBug::kLateSnapshotOverwrites) return false;
      return std::ranges::find(server.saved, m.cut, &ModelServer::Saved::cut) !=
                 server.saved.end() &&
             (!state.takes_cut || (state.saved_by & server_bit(m.server)) != 0 || !is_of_present);
  }
  return false;
}

}  // namespace tutti::testing
