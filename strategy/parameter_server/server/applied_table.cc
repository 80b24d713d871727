// Implements AppliedTable: decisions about changes, and the removal of old streams.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/server/applied_table.h"

#include <algorithm>
#include <limits>

#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

using StreamKind = UpdateStream::Kind;

bool is_finished(const UpdateStream& stream, std::uint64_t finished_below) {
  return stream.kind == StreamKind::kClosure && stream.id < finished_below;
}

}  // namespace

std::string to_string(const UpdateStream& stream) {
  std::string text = stream.kind == StreamKind::kClosure
                         ? concat("closure ", closure_number(stream.id))
                         : concat("client ", stream.id);
  if (stream.replica != 0) text += concat(", replica ", stream.replica);
  return text;
}

ChangeIdentity identity_of(const OperationBatch& batch) {
  return {batch.stream, batch.first_ordinal, num_changes(batch), batch.finished_below};
}

std::uint64_t AppliedTable::num_applied_before(const ChangeIdentity& identity) const {
  if (identity.num_changes == 0) return 0;
  const UpdateStream& stream = identity.stream;
  const std::uint64_t watermark = std::max(finished_below_, identity.finished_below);
  if (is_finished(stream, watermark)) {
    fail(ErrorCode::kAborted, to_string(stream), ": it has finished, or was scheduled before the ",
         "servers were restored from a checkpoint; its changes are refused");
  }
  if (identity.num_changes > std::numeric_limits<std::uint64_t>::max() - identity.first_ordinal) {
    fail(ErrorCode::kInvalidArgument, to_string(stream),
         ": expected change numbers that fit into 64 bits, got ", identity.num_changes,
         " changes from number ", identity.first_ordinal);
  }
  const auto found = next_.find(stream);
  const std::uint64_t next = found == next_.end() ? 0 : found->second;
  if (identity.first_ordinal > next) {
    fail(ErrorCode::kAborted, to_string(stream), ": change ", identity.first_ordinal,
         " arrived before change ", next, "; the server lost or refused the earlier changes");
  }
  return std::min(next - identity.first_ordinal, identity.num_changes);
}

void AppliedTable::note_applied(const ChangeIdentity& identity) {
  if (identity.finished_below > finished_below_) {
    finished_below_ = identity.finished_below;
    forget_finished();
  }
  if (identity.num_changes == 0 || is_finished(identity.stream, finished_below_)) return;
  std::uint64_t& next = next_[identity.stream];
  next = std::max(next, identity.first_ordinal + identity.num_changes);
  if (identity.stream.kind == StreamKind::kClient) std::erase(ended_clients_, identity.stream.id);
}

void AppliedTable::end_client(std::uint64_t client) {
  const auto first = next_.lower_bound({StreamKind::kClient, client, 0});
  const bool is_known =
      first != next_.end() && first->first.kind == StreamKind::kClient && first->first.id == client;
  if (!is_known || std::ranges::count(ended_clients_, client) != 0) return;
  ended_clients_.push_back(client);
  if (ended_clients_.size() <= kMostEndedClients) return;
  forget_client(ended_clients_.front());
  ended_clients_.pop_front();
}

void AppliedTable::forget_client(std::uint64_t client) {
  constexpr auto kLast = std::numeric_limits<std::uint32_t>::max();
  next_.erase(next_.lower_bound({StreamKind::kClient, client, 0}),
              next_.upper_bound({StreamKind::kClient, client, kLast}));
}

void AppliedTable::forget_finished() {
  next_.erase(next_.lower_bound({StreamKind::kClosure, 0, 0}),
              next_.lower_bound({StreamKind::kClosure, finished_below_, 0}));
}

}  // namespace tutti::internal
