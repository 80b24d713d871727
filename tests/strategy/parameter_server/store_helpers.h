// What tests of the variable store share: batches, shards, comparisons of whole stores.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "strategy/parameter_server/server/server_store.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/core/clock.h"

namespace tutti::store_tests {

using internal::AssignShard;
using internal::CreateShard;
using internal::Operation;
using internal::OperationAnswer;
using internal::OperationBatch;
using internal::PendingAnswers;
using internal::ReadRows;
using internal::ReadShard;
using internal::ScatterShard;
using internal::ShardId;
using internal::ShardSpec;
using internal::SyncSpec;
using internal::UpdateShard;
using internal::UpdateStream;
using internal::VariableService;
using internal::VariableStore;
using testing::expect_error;
using testing::expect_same_bits;
using testing::expect_tensor;

inline TimePoint soon() { return deadline_after(Clock::system().now(), std::chrono::seconds(60)); }

inline ShardSpec whole(const std::string& variable, const Shape& shape,
                       DType dtype = DType::kFloat32) {
  return {variable, dtype, shape, 0, 1, 0, shape.rank() == 0 ? 1 : shape[0]};
}

inline Tensor rows_of(const std::vector<std::int64_t>& rows) {
  return Tensor::from(Shape{static_cast<std::int64_t>(rows.size())}, rows);
}

/// A client that counts its changes as it must.
class Client {
 public:
  Client(VariableService& service, std::uint64_t id,
         UpdateStream::Kind kind = UpdateStream::Kind::kClient)
      : service_(service), stream_{kind, id, 0} {}

  OperationBatch batch(std::vector<Operation> operations) {
    OperationBatch result;
    result.stream = stream_;
    result.first_ordinal = next_;
    result.operations = std::move(operations);
    next_ += internal::num_changes(result);
    return result;
  }
  std::shared_ptr<PendingAnswers> start(std::vector<Operation> operations) {
    return service_.start(batch(std::move(operations)));
  }
  std::vector<OperationAnswer> call(std::vector<Operation> operations) {
    return start(std::move(operations))->wait(soon());
  }
  Tensor read(ShardId shard) { return *call({ReadShard{shard}}).front().value; }
  /// As if the changes since had not been sent: the server refused them.
  void go_back_to(std::uint64_t ordinal) { next_ = ordinal; }

 private:
  VariableService& service_;
  UpdateStream stream_;
  std::uint64_t next_ = 0;
};

/// Values, versions, steps and table of a store, as text that can be compared.
inline std::string state_of(const VariableStore& store) {
  const internal::StoreSnapshot snapshot = store.snapshot();
  std::string text;
  for (const auto& shard : snapshot.shards) {
    text += concat(shard.spec, " version ", shard.version, " steps ", shard.num_steps, " held ",
                   shard.accumulator.held().size(), ": ");
    for (const std::byte each : shard.value.bytes())
      text += concat(std::to_integer<int>(each), " ");
    text += "\n";
  }
  for (const std::byte each : snapshot.table.save())
    text += concat(std::to_integer<int>(each), " ");
  return text;
}

}  // namespace tutti::store_tests
