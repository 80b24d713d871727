// What servers of the model do with what comes to them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/strategy/parameter_server/protocol_model.h"

namespace tutti::testing {

/// The server that keeps the copy of this one.
inline std::size_t keeper_of(const ModelState& state, std::size_t server) {
  return (server + 1) % state.servers.size();
}

internal::ChangeIdentity identity_of(const ModelMessage& push);
/// The table takes the changes of this term, and of later ones, from here on.
void fence(internal::AppliedTable& table, std::uint64_t term);

/// Whether this restore brings a server what it confirmed, for nothing was undone in its term.
bool keeps_confirmed(const ModelState& state, const ModelMessage& restore);
/// Whether it brings that from the copy that another server keeps.
bool is_from_copy(const ModelOptions& options, const ModelState& state,
                  const ModelMessage& restore);

/// Whether the first change that is on its way to where this server's are kept can get there.
bool can_keep_first(const ModelOptions& options, const ModelState& state, std::size_t server);

/// Changes the servers of a state, and nothing else but its violation. Whoever calls it carries the
/// answers to workers and coordinator.
class ModelServers {
 public:
  ModelServers(const ModelOptions& options, ModelState& state) : options_(options), state_(state) {}

  /// Neither: the change is applied, and whoever sent it hears so when it is kept.
  struct Answer {
    bool is_confirmed = false;
    std::string refusal = {};
  };
  /// `is_answered`: the answer gets there.
  Answer take_push(const ModelMessage& push, bool is_answered);
  // Of orders: false for one that came too late, or that it cannot obey.
  bool take_fence(const ModelMessage& order);
  bool take_restore(const ModelMessage& order);
  bool take_snapshot(const ModelMessage& order);
  /// `kept`: the changes that are in the copy now, with the state that it begins with.
  bool take_begin_copy(const ModelMessage& order, std::vector<ModelChange>& kept);

  /// The first change of this server that is on its way to where it is kept gets there.
  ModelChange keep_first(std::size_t server);
  /// What is on a disk stays.
  void kill(std::size_t server);

 private:
  bool is_kept_at_once(const ModelMessage& push, bool is_new, bool is_answered);
  std::string take_state(const ModelMessage& restore);
  std::string replay_log(ModelServer& own, const ModelServer::Saved& saved) const;
  ModelServer& server(std::size_t s) const { return state_.servers[s]; }

  const ModelOptions& options_;
  ModelState& state_;
};

}  // namespace tutti::testing
