// States of the model: as bytes, in words, and whether they are sound.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "tests/strategy/parameter_server/protocol_model.h"
#include "tutti/cluster/handshake/byte_stream.h"

namespace tutti::testing {
namespace {

using internal::ClosureLedger;
using Message = ModelMessage;

std::uint8_t swapped(std::uint8_t mask) {
  return static_cast<std::uint8_t>(((mask & 1) << 1) | ((mask >> 1) & 1));
}

void write(internal::ByteWriter& bytes, const ModelServer::Counts& counts) {
  for (const std::uint8_t count : counts) bytes.number(count);
}
void write(internal::ByteWriter& bytes, const ModelServer& server) {
  bytes.number(static_cast<std::uint8_t>(server.is_up));
  bytes.raw(server.table.save());
  write(bytes, server.counts);
  bytes.number(server.restored_term);
  bytes.number(model_byte(server.saved.size()));
  for (const ModelServer::Saved& saved : server.saved) {
    bytes.number(saved.cut), bytes.raw(saved.table.save()), write(bytes, saved.counts);
  }
  for (const auto* changes : {&server.log, &server.sent}) {
    bytes.number(model_byte(changes->size()));
    for (const ModelChange& c : *changes) {
      for (const std::uint8_t part :
           {c.number, c.attempt, c.content, c.term, c.below, c.after_cut, c.is_awaited}) {
        bytes.number(part);
      }
    }
  }
  bytes.number(static_cast<std::uint8_t>(server.has_copy));
  if (server.has_copy) bytes.raw(server.copy.table.save()), write(bytes, server.copy.counts);
}

/// All but the ledger, with the servers in this order or the other.
std::vector<std::byte> bytes_of(const ModelState& state, bool swap) {
  internal::ByteWriter bytes;
  bytes.number(static_cast<std::uint8_t>(state.coordinator_is_up));
  bytes.number(static_cast<std::uint8_t>(state.takes_cut));
  bytes.number(swap ? swapped(state.saved_by) : state.saved_by);
  bytes.number(swap ? swapped(state.copied) : state.copied);
  bytes.number(state.faults_left), bytes.number(state.cuts_left);
  for (int i = 0; i < kModelServers; ++i) {
    const auto s = static_cast<std::size_t>(swap ? kModelServers - 1 - i : i);
    bytes.number(static_cast<std::uint8_t>(state.await[s]));
    write(bytes, state.servers[s]);
  }
  std::vector<ModelTask> tasks = state.tasks;
  std::vector<Message> network = state.network;
  if (swap) {
    for (ModelTask& task : tasks) task.confirmed_by = swapped(task.confirmed_by);
    for (Message& message : network) {
      if (message.kind != Message::Kind::kDone) message.server ^= 1;
    }
    std::ranges::sort(tasks), std::ranges::sort(network);
  }
  bytes.number(model_byte(tasks.size()));
  for (const ModelTask& t : tasks) {
    for (const std::uint8_t part : {t.number, t.attempt, t.content, t.term, t.confirmed_by}) {
      bytes.number(part);
    }
  }
  for (const Message& m : network) {
    bytes.number(static_cast<std::uint8_t>(m.kind));
    for (const std::uint8_t part :
         {m.server, m.number, m.attempt, m.content, m.term, m.below, m.cut}) {
      bytes.number(part);
    }
  }
  return std::move(bytes.bytes());
}

}  // namespace

std::uint8_t model_byte(std::uint64_t value) {
  TUTTI_CHECK(value < 256, "the model counts in bytes");
  return static_cast<std::uint8_t>(value);
}

std::vector<std::byte> ModelState::bytes() const {
  auto bytes = std::min(bytes_of(*this, false), bytes_of(*this, true));
  const auto of_ledger = ledger.bytes();
  bytes.insert(bytes.end(), of_ledger.begin(), of_ledger.end());
  return bytes;
}

/// What a worker was told is there: closures may not be finished by it, nor be reported yet.
std::string ProtocolModel::lost_confirmation(const ModelState& state) const {
  if (options_.durability == Durability::kSnapshot) return "";
  for (const ModelTask& task : state.tasks) {
    if (task.term < state.ledger.rollback_term()) continue;
    for (int s = 0; s < kModelServers; ++s) {
      const ModelServer& server = state.servers[static_cast<std::size_t>(s)];
      const bool is_confirmed = ((task.confirmed_by >> s) & 1) != 0;
      if (!is_confirmed || !server.is_up || server.counts[task.content] > 0) continue;
      return concat("ps ", s, " confirmed closure ", static_cast<int>(task.number),
                    ", and lost it");
    }
  }
  return "";
}

std::string ProtocolModel::violation(const ModelState& state) const {
  if (!state.violation.empty()) return state.violation;
  if (auto lost = lost_confirmation(state); !lost.empty()) return lost;
  for (int s = 0; s < kModelServers; ++s) {
    const ModelServer& server = state.servers[static_cast<std::size_t>(s)];
    if (!server.is_up) continue;
    const bool is_current = server.restored_term >= state.ledger.rollback_term();
    for (int c = 0; c < options_.num_closures; ++c) {
      const int count = server.counts[static_cast<std::size_t>(c)];
      if (count > 1) return concat("ps ", s, " counted closure ", c, " ", count, " times");
      const auto* closure = state.ledger.find(static_cast<std::uint64_t>(c));
      // (A number that the planted bug gives up ends, too, but its content goes on.)
      const bool has_finished =
          options_.bug != PlantedBug::kRetryTakesNewNumber &&
          (closure == nullptr || closure->state == ClosureLedger::State::kFinished);
      if (is_current && has_finished && count != 1) {
        return concat("closure ", c, " finished, and ps ", s, " did not count it");
      }
    }
  }
  return "";
}

std::string ProtocolModel::why_not_ended(const ModelState& state) const {
  if (!state.coordinator_is_up) return "there is no coordinator";
  if (!state.ledger.is_drained()) return "closures wait or run";
  for (int s = 0; s < kModelServers; ++s) {
    const ModelServer& server = state.servers[static_cast<std::size_t>(s)];
    if (!server.is_up) return concat("ps ", s, " is not there");
    for (int c = 0; c < options_.num_closures; ++c) {
      if (server.counts[static_cast<std::size_t>(c)] != 1) {
        return concat("ps ", s, " did not count closure ", c);
      }
    }
  }
  return "";
}

}  // namespace tutti::testing
