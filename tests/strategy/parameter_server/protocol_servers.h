// What servers of the model do with what comes to them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "tests/strategy/parameter_server/protocol_model.h"

namespace tutti::testing {

internal::ChangeIdentity identity_of(const ModelMessage& push);
/// The table takes the changes of this term, and of later ones, from here on.
void fence(internal::AppliedTable& table, std::uint64_t term);

/// Changes the servers of a state, and nothing else but its violation. The caller carries the
/// answers to workers and coordinator.
class ModelServers {
 public:
  ModelServers(const ModelOptions& options, ModelState& state) : options_(options), state_(state) {}

  /// "": it is confirmed. Else why it was refused.
  std::string take_push(const ModelMessage& push);
  // Of orders: false for one that came too late, or that it cannot obey.
  bool take_fence(const ModelMessage& order);
  bool take_load(const ModelMessage& order);
  bool take_snapshot(const ModelMessage& order);

  /// Of kAcknowledgeBeforeKept: the first change that is not in the log yet gets there.
  void keep_first(std::size_t server);
  /// What is on a disk stays.
  void kill(std::size_t server);

 private:
  std::string replay_log(ModelServer& own, const ModelServer::Saved& saved) const;
  ModelServer& server(std::size_t s) const { return state_.servers[s]; }

  const ModelOptions& options_;
  ModelState& state_;
};

}  // namespace tutti::testing
