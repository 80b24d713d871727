// The stream of changes that the calling thread belongs to, and what it has read.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/client/update_origin.h"

#include "tutti/strategy/local_replica.h"
#include "tutti/strategy/parameter_server/client/closure_context.h"
#include "tutti/strategy/strategy_mode.h"

namespace tutti::internal {
namespace {

/// 0 outside replicas, whose first is 1.
std::uint32_t replica_of_thread() {
  const StrategyMode* mode = current_mode();
  const auto* replica = mode ? dynamic_cast<const LocalReplicaContext*>(mode->replica) : nullptr;
  return replica ? static_cast<std::uint32_t>(replica->local_replica()) + 1 : 0;
}

}  // namespace

UpdateOrigin current_update_origin(std::uint64_t client) {
  if (const ClosureContext* const closure = ClosureContext::current()) {
    return {{UpdateStream::Kind::kClosure, closure->number(), replica_of_thread()},
            closure->attempt(),
            closure->term(),
            closure->finished_below()};
  }
  return {{UpdateStream::Kind::kClient, client, replica_of_thread()}};
}

void ReadVersions::note(const UpdateOrigin& reader, const Variable& variable, std::size_t shard,
                        std::size_t num_shards, std::uint64_t version) {
  std::vector<std::uint64_t>& versions = versions_[{reader.stream, reader.attempt}][variable];
  versions.resize(num_shards, 0);
  if (versions[shard] == 0) versions[shard] = version;
}

std::uint64_t ReadVersions::take(const UpdateOrigin& reader, const Variable& variable,
                                 std::size_t shard) {
  const auto of_reader = versions_.find({reader.stream, reader.attempt});
  if (of_reader == versions_.end()) return 0;
  const auto found = of_reader->second.find(variable);
  if (found == of_reader->second.end()) return 0;
  return std::exchange(found->second[shard], 0);
}

void ReadVersions::forget(const UpdateOrigin& ended) {
  std::erase_if(versions_, [&](const auto& each) {
    const auto& [stream, attempt] = each.first;
    return ended.is_with({.stream = stream, .attempt = attempt});
  });
}

void ReadVersions::forget_clients() {
  std::erase_if(versions_, [](const auto& each) {
    return each.first.first.kind == UpdateStream::Kind::kClient;
  });
}

}  // namespace tutti::internal
