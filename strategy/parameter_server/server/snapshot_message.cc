// Parts of a snapshot as messages of parameter_server.proto.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/server/snapshot_message.h"

#include <limits>

#include "tutti/strategy/parameter_server/protocol/message.h"
#include "tutti/strategy/parameter_server/protocol/operation_message.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kLongestLabel = 64;

[[noreturn]] void refuse(const char* what) {
  fail(ErrorCode::kDataLoss, "a shard of a snapshot: ", what);
}

ShardSnapshot shard_of(const OperationBatch& batch, std::uint64_t version,
                       std::uint64_t num_steps) {
  const auto* create =
      batch.operations.empty() ? nullptr : std::get_if<CreateShard>(&batch.operations.front());
  const auto* value = create ? std::get_if<Tensor>(&create->initial_value) : nullptr;
  if (value == nullptr) refuse("no values");
  const ShardSpec& spec = create->spec;
  const std::int64_t whole_rows = spec.whole_shape.rank() == 0 ? 1 : spec.whole_shape.dim(0);
  const bool are_rows = spec.first_row >= 0 && spec.num_rows >= 0 && spec.first_row <= whole_rows &&
                        spec.num_rows <= whole_rows - spec.first_row;
  if (!are_rows || value->dtype() != spec.dtype || value->shape() != spec.shape()) {
    refuse("values that do not fit it");
  }
  ShardSnapshot shard{spec, *value, version, num_steps};
  for (std::size_t i = 1; i < batch.operations.size(); ++i) {
    const auto* update = std::get_if<UpdateShard>(&batch.operations[i]);
    const bool is_held =
        update && update->sync && update->shard == spec.id() &&
        shard.accumulator.take(*update, num_steps) == SyncAccumulator::Taken::kHeld;
    if (!is_held) refuse("an operation that is no held gradient");
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

}  // namespace tutti::internal
