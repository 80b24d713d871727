// Which changes a server has applied: what makes an update happen exactly once.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "strategy/parameter_server/protocol/operation.h"

namespace tutti::internal {

/// The sender and numbers of changes: the part of a batch that decides whether it is applied.
struct ChangeIdentity {
  UpdateStream stream = {};
  std::uint64_t first_ordinal = 0;
  std::uint64_t num_changes = 0;
  std::uint64_t finished_below = 0;
  bool operator==(const ChangeIdentity&) const = default;
};
ChangeIdentity identity_of(const OperationBatch& batch);

/// Per stream the next ordinal that is expected, and the id below which closures are finished. A
/// value that depends on nothing but the calls: no threads, clocks or files.
class AppliedTable {
 public:
  explicit AppliedTable(std::uint64_t finished_below = 0) : finished_below_(finished_below) {}

  /// How many leading changes of a batch were applied before (all, some of them, or none). Changes
  /// nothing. Throws kAborted for changes of a finished closure, and for a gap: an ordinal came
  /// before those below it.
  std::uint64_t num_applied_before(const ChangeIdentity& identity) const;
  /// All changes of the batch are applied now; its watermark holds from here on. Only after
  /// num_applied_before() of the same table state of this stream.
  void note_applied(const ChangeIdentity& identity);

  /// The client left. Its streams are kept until kMostEndedClients more have left, for a call of it
  /// may still be on its way.
  void end_client(std::uint64_t client);

  std::uint64_t finished_below() const { return finished_below_; }
  std::size_t num_streams() const { return next_.size(); }

  bool operator==(const AppliedTable&) const = default;

  static constexpr std::size_t kMostEndedClients = 1024;

 private:
  void forget_client(std::uint64_t client);
  void forget_finished();

  std::uint64_t finished_below_;
  std::map<UpdateStream, std::uint64_t> next_;
  std::deque<std::uint64_t> ended_clients_;  // the first to be forgotten in front
};

/// "client 5b2c..., replica 1", "closure 17".
std::string to_string(const UpdateStream& stream);

}  // namespace tutti::internal
