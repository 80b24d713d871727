// Which changes a server has applied: decisions, forgetting, bytes.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/protocol/applied_table.h"

#include <algorithm>
#include <limits>

#include "tutti/cluster/handshake/byte_stream.h"
#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

constexpr std::uint32_t kFormat = 1;
using Kind = UpdateStream::Kind;

bool is_finished(const UpdateStream& stream, std::uint64_t finished_below) {
  return stream.kind == Kind::kClosure && stream.id < finished_below;
}

}  // namespace

std::string to_string(const UpdateStream& stream) {
  std::string text = concat(stream.kind == Kind::kClosure ? "closure " : "client ", stream.id);
  if (stream.replica != 0) text += concat(", replica ", stream.replica);
  return text;
}

ChangeIdentity identity_of(const OperationBatch& batch) {
  return {batch.term, batch.stream, batch.first_ordinal, num_changes(batch), batch.finished_below};
}

std::uint64_t AppliedTable::num_applied_before(const ChangeIdentity& identity) const {
  if (identity.term != 0 && identity.term < term_) {
    fail(ErrorCode::kAborted, "the coordinator of term ", identity.term,
         " was replaced; expected term ", term_, " or later");
  }
  if (identity.num_changes == 0) return 0;
  const UpdateStream& stream = identity.stream;
  const std::uint64_t watermark = std::max(finished_below_, identity.finished_below);
  if (is_finished(stream, watermark)) {
    fail(ErrorCode::kAborted, to_string(stream), ": it is finished, as all below ", watermark,
         "; its changes are refused");
  }
  if (identity.num_changes > std::numeric_limits<std::uint64_t>::max() - identity.first_ordinal) {
    fail(ErrorCode::kInvalidArgument, to_string(stream), ": no change has the number ",
         identity.first_ordinal, " + ", identity.num_changes);
  }
  const auto found = next_.find(stream);
  const std::uint64_t next = found == next_.end() ? 0 : found->second;
  if (identity.first_ordinal > next) {
    fail(ErrorCode::kAborted, to_string(stream), ": change ", identity.first_ordinal,
         " came before ", next, "; the server lost what came before it, or it was refused");
  }
  return std::min(next - identity.first_ordinal, identity.num_changes);
}

void AppliedTable::note_heard(const ChangeIdentity& identity) {
  term_ = std::max(term_, identity.term);
  if (identity.finished_below > finished_below_) {
    finished_below_ = identity.finished_below;
    forget_finished();
  }
}

void AppliedTable::note_applied(const ChangeIdentity& identity) {
  note_heard(identity);
  if (identity.num_changes == 0 || is_finished(identity.stream, finished_below_)) return;
  std::uint64_t& next = next_[identity.stream];
  next = std::max(next, identity.first_ordinal + identity.num_changes);
  if (identity.stream.kind == Kind::kClient) std::erase(ended_clients_, identity.stream.id);
}

void AppliedTable::end_client(std::uint64_t client) {
  const auto first = next_.lower_bound({Kind::kClient, client, 0});
  const bool is_known =
      first != next_.end() && first->first.kind == Kind::kClient && first->first.id == client;
  if (!is_known || std::ranges::count(ended_clients_, client) != 0) return;
  ended_clients_.push_back(client);
  if (ended_clients_.size() <= kMostEndedClients) return;
  forget_client(ended_clients_.front());
  ended_clients_.pop_front();
}

void AppliedTable::forget_client(std::uint64_t client) {
  constexpr auto kLast = std::numeric_limits<std::uint32_t>::max();
  next_.erase(next_.lower_bound({Kind::kClient, client, 0}),
              next_.upper_bound({Kind::kClient, client, kLast}));
}

void AppliedTable::forget_finished() {
  next_.erase(next_.lower_bound({Kind::kClosure, 0, 0}),
              next_.lower_bound({Kind::kClosure, finished_below_, 0}));
}

std::vector<std::byte> AppliedTable::save() const {
  ByteWriter out;
  out.number(kFormat);
  out.number(term_);
  out.number(finished_below_);
  out.number(std::uint64_t{next_.size()});
  for (const auto& [stream, next] : next_) {
    out.number(static_cast<std::uint8_t>(stream.kind));
    out.number(stream.id);
    out.number(stream.replica);
    out.number(next);
  }
  out.number(std::uint64_t{ended_clients_.size()});
  for (const std::uint64_t client : ended_clients_) out.number(client);
  return std::move(out.bytes());
}

AppliedTable AppliedTable::restore(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  AppliedTable table;
  const bool is_known = in.number<std::uint32_t>() == kFormat;
  table.term_ = in.number<std::uint64_t>();
  table.finished_below_ = in.number<std::uint64_t>();
  for (auto n = in.number<std::uint64_t>(); n > 0 && !in.failed(); --n) {
    UpdateStream stream;
    stream.kind = static_cast<Kind>(in.number<std::uint8_t>());
    stream.id = in.number<std::uint64_t>();
    stream.replica = in.number<std::uint32_t>();
    table.next_.emplace(stream, in.number<std::uint64_t>());
  }
  for (auto n = in.number<std::uint64_t>(); n > 0 && !in.failed(); --n) {
    table.ended_clients_.push_back(in.number<std::uint64_t>());
  }
  // What is read is written as the same bytes: order, kinds and doubles are checked by that.
  if (!is_known || !in.is_complete() || !std::ranges::equal(table.save(), bytes)) {
    fail(ErrorCode::kDataLoss, "AppliedTable::restore: ", bytes.size(),
         " bytes that are no table of applied changes");
  }
  return table;
}

}  // namespace tutti::internal
