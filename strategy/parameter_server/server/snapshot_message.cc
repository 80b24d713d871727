// Parts of a snapshot as messages of parameter_server.proto.
// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "parameter_server.pb.h"
#include "strategy/parameter_server/protocol/message.h"
#include "strategy/parameter_server/protocol/operation_message.h"
#include "strategy/parameter_server/server/server_files.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kLongestLabel = 64;

[[noreturn]] void refuse_shard(const char* what) {
  fail(ErrorCode::kDataLoss, "a shard of a snapshot: ", what);
}

ShardSnapshot shard_of(const OperationBatch& batch, std::uint64_t version,
                       std::uint64_t num_steps) {
  const auto* create =
      batch.operations.empty() ? nullptr : std::get_if<CreateShard>(&batch.operations.front());
  const auto* value = create ? std::get_if<Tensor>(&create->initial_value) : nullptr;
  if (value == nullptr) refuse_shard("no values");
  const ShardSpec& spec = create->spec;
  if (!spec.has_rows() || value->dtype() != spec.dtype || value->shape() != spec.shape()) {
    refuse_shard("values that do not fit it");
  }
  ShardSnapshot shard{spec, *value, version, num_steps};
  for (std::size_t i = 1; i < batch.operations.size(); ++i) {
    const auto* update = std::get_if<UpdateShard>(&batch.operations[i]);
    const bool is_held =
        update && update->sync && update->shard == spec.id() &&
        shard.accumulator.take(*update, num_steps) == SyncAccumulator::Taken::kHeld;
    if (!is_held) refuse_shard("an operation that is no held gradient");
  }
  return shard;
}

}  // namespace

std::vector<std::byte> encode_for_file(const SnapshotLabel& label) {
  TUTTI_CHECK(label.job_id.size() <= kLongestLabel, "snapshot: a job id of ", label.job_id.size(),
              " characters");
  InArena<v1::SnapshotLabel> message;
  message->set_job_id(label.job_id);
  message->set_server(label.server), message->set_num_servers(label.num_servers);
  message->set_cut(label.cut), message->set_term(label.term);
  return serialized(*message);
}

SnapshotLabel decode_label(std::span<const std::byte> bytes) {
  InArena<v1::SnapshotLabel> message;
  parse(bytes, *message);
  if (message->job_id().size() > kLongestLabel) {
    fail(ErrorCode::kDataLoss, "a job id of ", message->job_id().size(), " characters");
  }
  return {message->job_id(), message->server(), message->num_servers(), message->cut(),
          message->term()};
}

Packet encode_for_file(const ShardSnapshot& shard) {
  OperationBatch batch;
  batch.operations.push_back(CreateShard{shard.spec, shard.value});
  for (const auto& update : shard.accumulator.held()) batch.operations.push_back(*update);
  const auto put = [&](v1::SavedShard& message, PayloadWriter& payload) {
    message.set_version(shard.version), message.set_num_steps(shard.num_steps);
    put_batch(batch, payload, *message.mutable_state());
  };
  return packet_of<v1::SavedShard>(put, std::numeric_limits<std::uint32_t>::max());
}

ShardSnapshot decode_shard(const Packet& packet) {
  const auto get = [](const v1::SavedShard& message, PayloadReader& payload) {
    const OperationBatch batch = get_batch(message.state(), payload);
    return shard_of(batch, message.version(), message.num_steps());
  };
  return read_packet<v1::SavedShard>(packet, get);
}

std::vector<std::byte> AppliedTable::save() const {
  InArena<v1::AppliedTable> message;
  message->set_term(term_), message->set_finished_below(finished_below_);
  for (const auto& [stream, next] : next_) {
    v1::AppliedTable::Stream& out = *message->add_streams();
    out.set_kind(static_cast<std::uint32_t>(stream.kind));
    out.set_id(stream.id), out.set_replica(stream.replica), out.set_next(next);
  }
  for (const std::uint64_t client : ended_clients_) message->add_ended_clients(client);
  message->set_is_whole(true);
  return serialized(*message, std::numeric_limits<std::uint32_t>::max());
}

AppliedTable AppliedTable::restore(std::span<const std::byte> bytes) {
  InArena<v1::AppliedTable> message;
  const v1::AppliedTable& in = *message;
  AppliedTable table;
  try {
    parse(bytes, *message);
    table.term_ = in.term(), table.finished_below_ = in.finished_below();
    for (const v1::AppliedTable::Stream& each : in.streams()) {
      const auto kind =
          checked_enum(each.kind(), UpdateStream::Kind::kClient, UpdateStream::Kind::kClosure);
      table.next_.emplace(UpdateStream{kind, each.id(), each.replica()}, each.next());
    }
    table.ended_clients_.assign(in.ended_clients().begin(), in.ended_clients().end());
    if (in.is_whole() && table.next_.size() == static_cast<std::size_t>(in.streams_size())) {
      return table;
    }
  } catch (const Error&) {  // said below
  }
  fail(ErrorCode::kDataLoss, "AppliedTable::restore: ", bytes.size(),
       " bytes that are no table of applied changes");
}

}  // namespace tutti::internal
