// Table of the changes that a server has applied, so that it applies each change exactly once.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "strategy/parameter_server/protocol/operation.h"

namespace tutti::internal {

/// Sender and sequence numbers of a batch's changes, which decide whether the batch is applied.
struct ChangeIdentity {
  UpdateStream stream = {};
  std::uint64_t first_ordinal = 0;
  std::uint64_t num_changes = 0;
  std::uint64_t finished_below = 0;
  bool operator==(const ChangeIdentity&) const = default;
};
ChangeIdentity identity_of(const OperationBatch& batch);

/// Next expected ordinal of each stream, and the id below which closures are finished. Value type.
/// Its state depends only on the calls made to it: it uses no threads, clocks or files.
class AppliedTable {
 public:
  explicit AppliedTable(std::uint64_t finished_below = 0) : finished_below_(finished_below) {}

  /// Returns the number of leading changes of a batch that were applied before (all, some or none).
  /// Throws kAborted for changes of a finished closure, and for a gap, that is, if an ordinal
  /// arrived before a lower one.
  std::uint64_t num_applied_before(const ChangeIdentity& identity) const;
  /// Records that all changes of the batch have been applied, and raises finished_below() to the
  /// value that the batch contains. Requires: num_applied_before() has returned, and the stream has
  /// not changed since.
  void note_applied(const ChangeIdentity& identity);

  /// Records that the client has disconnected. Its streams are kept until kMostEndedClients more
  /// clients have disconnected, because one of its calls may still be in transit.
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
  std::deque<std::uint64_t> ended_clients_;  // oldest first
};

/// Returns a string such as "client 5817, replica 1" or "closure 17".
std::string to_string(const UpdateStream& stream);

}  // namespace tutti::internal
