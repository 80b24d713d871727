// States of the model: the first one, as bytes, in words, and whether they are sound.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "core/byte_codec.h"
#include "tests/strategy/parameter_server/protocol_model.h"
#include "tests/strategy/parameter_server/protocol_servers.h"

namespace tutti::testing {
namespace {

using internal::ClosureLedger;
using Message = ModelMessage;

/// The mask with each server's bit at the place of the one that stands `by` later.
std::uint8_t turned(std::uint8_t mask, int by, int num_servers) {
  const int wide = mask << by;
  return static_cast<std::uint8_t>((wide | (wide >> num_servers)) & all_servers(num_servers));
}

void write(internal::ByteWriter& bytes, const ModelServer::Counts& counts) {
  for (const std::uint8_t count : counts) bytes.number(count);
}
void write(internal::ByteWriter& bytes, const ModelServer& server) {
  bytes.number(static_cast<std::uint8_t>(server.is_up));
  bytes.raw(server.table.save());
  write(bytes, server.counts);
  bytes.number(server.loaded_term);
  bytes.number(model_byte(server.saved.size()));
  for (const ModelServer::Saved& saved : server.saved) {
    bytes.number(saved.cut), bytes.raw(saved.table.save()), write(bytes, saved.counts);
  }
  for (const auto* changes : {&server.log, &server.late}) {
    bytes.number(model_byte(changes->size()));
    for (const ModelChange& c : *changes) {
      for (const std::uint8_t part : {c.number, c.content, c.term, c.below, c.after_cut}) {
        bytes.number(part);
      }
    }
  }
}

/// All but the ledger, with each server at the place of the one that stands `by` later.
std::vector<std::byte> bytes_of(const ModelState& state, int by) {
  const auto n = static_cast<int>(state.servers.size());
  internal::ByteWriter bytes;
  bytes.number(static_cast<std::uint8_t>(state.coordinator_is_up));
  bytes.number(static_cast<std::uint8_t>(state.takes_cut));
  bytes.number(turned(state.saved_by, by, n));
  bytes.number(state.faults_left), bytes.number(state.cuts_left);
  for (int place = 0; place < n; ++place) {
    const auto s = static_cast<std::size_t>((place + n - by) % n);
    bytes.number(static_cast<std::uint8_t>(state.await[s]));
    write(bytes, state.servers[s]);
  }
  std::vector<ModelTask> tasks = state.tasks;
  std::vector<Message> network = state.network;
  if (by != 0) {
    for (ModelTask& task : tasks) task.confirmed_by = turned(task.confirmed_by, by, n);
    for (Message& message : network) {
      if (message.kind == Message::Kind::kDone) continue;
      message.server = static_cast<std::uint8_t>((message.server + by) % n);
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

void ModelState::record(const internal::ClosureEvent& event) {
  ledger.apply(event);
  const auto record = internal::encode_record(event);
  journal.insert(journal.end(), record.begin(), record.end());
}

std::vector<std::byte> ModelState::bytes() const {
  auto bytes = bytes_of(*this, 0);
  for (int by = 1; std::cmp_less(by, servers.size()); ++by) {
    bytes = std::min(bytes, bytes_of(*this, by));
  }
  const auto of_ledger = ledger.bytes();
  bytes.insert(bytes.end(), of_ledger.begin(), of_ledger.end());
  return bytes;
}

ModelState ProtocolModel::initial() const {
  ModelState state;
  // No verdict on closures: here it is chance alone that ends attempts.
  state.ledger = ClosureLedger({100, 100});
  state.faults_left = model_byte(static_cast<std::uint64_t>(options_.num_faults));
  state.cuts_left = model_byte(static_cast<std::uint64_t>(options_.num_cuts));
  state.await.assign(static_cast<std::size_t>(options_.num_servers), ModelState::Await::kNothing);
  state.servers.resize(state.await.size());
  state.record(internal::events::TookOver{1});
  for (ModelServer& server : state.servers) {
    fence(server.table, 1);
    server.loaded_term = 1;
    server.saved = {{0, server.table, server.counts}};  // cut 0: the beginning
  }
  for (int i = 0; i < options_.num_closures; ++i) {
    state.record(internal::events::Scheduled{static_cast<std::uint64_t>(i),
                                             std::string(1, static_cast<char>(i))});
  }
  return state;
}

/// What a worker was told is there: closures may not be finished by it, nor be reported yet.
std::string ProtocolModel::lost_confirmation(const ModelState& state) const {
  for (const ModelTask& task : state.tasks) {
    for (int s = 0; s < options_.num_servers; ++s) {
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
  for (int s = 0; s < options_.num_servers; ++s) {
    const ModelServer& server = state.servers[static_cast<std::size_t>(s)];
    if (!server.is_up) continue;
    for (int c = 0; c < options_.num_closures; ++c) {
      const int count = server.counts[static_cast<std::size_t>(c)];
      if (count > 1) return concat("ps ", s, " counted closure ", c, " ", count, " times");
      const auto* closure = state.ledger.find(static_cast<std::uint64_t>(c));
      // (A number that the planted bug gives up ends, too, but its content goes on.)
      const bool has_finished =
          options_.bug != PlantedBug::kRetryTakesNewNumber &&
          (closure == nullptr || closure->state == ClosureLedger::State::kFinished);
      if (has_finished && count != 1) {
        return concat("closure ", c, " finished, and ps ", s, " did not count it");
      }
    }
  }
  return "";
}

std::string ProtocolModel::why_not_ended(const ModelState& state) const {
  if (!state.coordinator_is_up) return "there is no coordinator";
  if (!state.ledger.is_drained()) return "closures wait or run";
  for (int s = 0; s < options_.num_servers; ++s) {
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
