// In whose name the calling thread changes values, and from which versions it computes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tutti/strategy/parameter_server/protocol/operation.h"

namespace tutti::internal {

struct UpdateOrigin {
  UpdateStream stream = {};
  /// Of the closure: an earlier attempt may still run in this process, and counts for itself.
  int attempt = 0;
  std::uint64_t term = 0;
  std::uint64_t finished_below = 0;

  /// Whether both are of one client, or of one attempt at a closure, on whatever replica.
  bool is_with(const UpdateOrigin& other) const {
    return stream.kind == other.stream.kind && stream.id == other.stream.id &&
           attempt == other.attempt;
  }
};

/// Of a closure that this thread runs; else of the client `client`, where each replica of a running
/// step counts for itself.
UpdateOrigin current_update_origin(std::uint64_t client);

struct ReadCache;

/// By replica or closure, for several of them read the same variable at different times. Of several
/// reads between two updates the first one counts. Not synchronised.
class ReadVersions {
 public:
  using Variable = std::shared_ptr<const ReadCache>;

  /// Shard `shard` of `num_shards` was read in this version.
  void note(const UpdateOrigin& reader, const Variable& variable, std::size_t shard,
            std::size_t num_shards, std::uint64_t version);
  /// That of the first read since the last call; 0: none.
  std::uint64_t take(const UpdateOrigin& reader, const Variable& variable, std::size_t shard);
  /// A closure has ended; on all of its replicas.
  void forget(const UpdateOrigin& ended);
  /// A step of this process has ended.
  void forget_clients();

 private:
  using Key = std::pair<UpdateStream, int>;  // with the closure's attempt
  using Versions = std::map<Variable, std::vector<std::uint64_t>>;
  std::map<Key, Versions> versions_;
};

}  // namespace tutti::internal
