// Helpers for tests of the variable store: batches, shards, and comparison of stores.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "strategy/parameter_server/server/server_store.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/core/clock.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/optimizer/update_rule_spec.h"

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

inline AssignShard addition(ShardId shard, const Tensor& value) {
  return {shard, AssignOp::kAdd, value};
}

/// Returns an update that performs plain gradient descent.
inline UpdateShard descent(ShardId shard, const Tensor& gradient, double learning_rate = 1.0) {
  UpdateShard update{shard, {}, describe_update_rule(SgdRule())};
  update.scalars.learning_rate = learning_rate;
  update.gradient = gradient;
  return update;
}

/// Client of a store. Assigns consecutive ordinals to its own changes.
class Client {
 public:
  Client(VariableService& service, std::uint64_t id,
         UpdateStream::Kind kind = UpdateStream::Kind::kClient)
      : service_(service), stream_{kind, id, 0} {}
  /// Run number of this client's batches. Orders sent by obey() belong to run 1.
  std::uint64_t run = 1;

  OperationBatch batch(std::vector<Operation> operations) {
    OperationBatch result;
    result.stream = stream_;
    result.run = run;
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
  /// Creates a shard with these values and returns its id.
  ShardId create(const ShardSpec& spec, const Tensor& values) {
    call({CreateShard{spec, values}});
    return spec.id();
  }
  Tensor read(ShardId shard) { return *call({ReadShard{shard}}).front().value; }
  /// Makes the next calls reuse the ordinals starting at `ordinal`, as a client does after the
  /// server has refused its changes.
  void go_back_to(std::uint64_t ordinal) { next_ = ordinal; }

 private:
  VariableService& service_;
  UpdateStream stream_;
  std::uint64_t next_ = 0;
};

/// Sends `order` (as if from run 1) and `operations` in one batch; returns the replies.
inline std::vector<OperationAnswer> obey(VariableStore& store, internal::StoreOrder order,
                                         std::vector<Operation> operations = {}) {
  order.run = 1;
  OperationBatch batch;
  batch.operations = {order};
  batch.operations.insert(batch.operations.end(), operations.begin(), operations.end());
  return store.start(std::move(batch))->wait(soon());
}

/// Returns the store's values, versions, step numbers and counts as a string, for comparison.
inline std::string state_of(VariableStore& store, std::uint64_t generation = 0) {
  using Kind = internal::StoreOrder::Kind;
  const auto answer = [&](Kind kind, std::vector<Operation> more = {}) {
    return obey(store, {.kind = kind, .generation = generation}, std::move(more));
  };
  std::string text;
  static std::uint64_t num_freezes = std::uint64_t{1} << 32;  // exceeds all numbers that tests use
  (void)obey(store, {.kind = Kind::kFreeze, .generation = generation, .number = ++num_freezes});
  for (const ShardSpec& spec : internal::decode_specs(*answer(Kind::kList).front().value)) {
    const OperationAnswer shard = answer(Kind::kReadFrozen, {ReadShard{spec.id()}}).at(1);
    text += concat(spec, " version ", shard.version, " steps ", shard.num_steps, ": ");
    for (const std::byte each : shard.value->bytes()) {
      text += concat(std::to_integer<int>(each), " ");
    }
    text += "\n";
  }
  (void)answer(Kind::kRelease);
  const internal::StoreCounts counts = store.counts();
  return concat(text, counts.num_changes, " ", counts.num_sync_steps, " ", counts.num_stale_dropped,
                " ", counts.num_rank_duplicates);
}

}  // namespace tutti::store_tests
