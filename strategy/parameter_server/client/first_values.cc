// Implements FirstValues. Each read builds a temporary StoredShard from the shard's initial value.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/client/first_values.h"

#include <utility>

#include "strategy/parameter_server/server/stored_shard.h"

namespace tutti::internal {
namespace {

constexpr std::uint64_t kVersion = 1;  // values never change

Tensor value_of(const CreateShard& made) {
  if (const auto* value = std::get_if<Tensor>(&made.initial_value)) return *value;
  return std::get<ValueGenerator>(made.initial_value).rows(made.spec.first_row, made.spec.num_rows);
}

}  // namespace

CreateShard FirstValues::find(ShardId shard) const {
  const MutexLock lock(mutex_);
  const auto found = made_.find(shard);
  if (found != made_.end()) return found->second;
  fail(ErrorCode::kNotFound, "there is no shard with the id ", shard, "; expected the id of ",
       "a shard that this program has created");
}

OperationAnswer FirstValues::answer(const Operation& operation) {
  OperationAnswer answer;
  answer.version = kVersion;
  if (const auto* create = std::get_if<CreateShard>(&operation)) {
    const MutexLock lock(mutex_);
    made_.try_emplace(create->spec.id(), *create);
    return answer;
  }
  const auto read_made = [this](const auto& read) {
    const CreateShard made = find(read.shard);
    return StoredShard(made.spec, value_of(made), kVersion).read(read);
  };
  if (const auto* shard = std::get_if<ReadShard>(&operation)) return read_made(*shard);
  if (const auto* rows = std::get_if<ReadRows>(&operation)) return read_made(*rows);
  fail(ErrorCode::kFailedPrecondition, "the program on a server must not change variables; ",
       "change them on the chief or in a closure");
}

std::shared_ptr<PendingAnswers> FirstValues::start(OperationBatch batch) {
  auto awaited = std::make_shared<AwaitedAnswers>(name_);
  BatchResult result;
  try {
    for (const Operation& each : batch.operations) result.answers.push_back(answer(each));
  } catch (const Error& error) {
    result = {{}, error};
  }
  awaited->set_result(std::move(result));
  return awaited;
}

}  // namespace tutti::internal
