// Requests to a parameter server: operations on shards, in batches that are applied once.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tutti/autograd/value_generator.h"
#include "tutti/autograd/variable_storage.h"
#include "tutti/cluster/rpc/packet.h"

namespace tutti::internal {

/// Id of a shard (rows of a variable on one server): a hash of the variable's name and the shard's
/// number, so that all clients agree on it. Creating a shard with a colliding id is an error.
using ShardId = std::uint64_t;
ShardId shard_id(const std::string& variable, int shard);

struct ShardSpec {
  std::string variable = {};
  DType dtype = DType::kFloat32;
  Shape whole_shape = {};  // shape of the variable
  int shard = 0;
  int num_shards = 1;
  std::int64_t first_row = 0;  // scalars count as one row
  std::int64_t num_rows = 1;
  Shape shape() const;  // shape of the shard
  /// Returns true if the variable contains rows [first_row, first_row + num_rows).
  bool has_rows() const;
  ShardId id() const { return shard_id(variable, shard); }
  /// Returns a string such as "'embedding' (shard 1 of 4)".
  std::string to_string() const;
  bool operator==(const ShardSpec&) const = default;
};

/// Creates the shard from a generator or from given values. An existing shard keeps its values; if
/// its spec differs, throws kInvalidArgument, naming both specs.
struct CreateShard {
  ShardSpec spec = {};
  std::variant<ValueGenerator, Tensor> initial_value = {};
};
/// Reads the values; the reply contains no values if `have_version` is still current.
struct ReadShard {
  ShardId shard = 0;
  std::uint64_t have_version = 0;  // version of the client's copy; 0: no copy
  /// Number of synchronous steps (SyncSpec) that must be applied before the read; 0: no wait.
  std::uint64_t at_least_steps = 0;
};
/// Reads the shard's rows with these indices (int64 [n], in any order). The reply has the shape
/// [n, ...].
struct ReadRows {
  ShardId shard = 0;
  Tensor rows = {};
  std::uint64_t at_least_steps = 0;
};
struct AssignShard {
  ShardId shard = 0;
  AssignOp op = AssignOp::kAssign;
  Tensor value = {};
};
/// Scatters values [n, ...] to the shard's rows with these indices (int64 [n], in any order).
struct ScatterShard {
  ShardId shard = 0;
  ScatterOp op = ScatterOp::kUpdate;
  Tensor rows = {};
  Tensor values = {};
};

/// Part of a synchronous step (SyncAccumulator). The server holds the gradients of `step` by rank
/// until `num_to_aggregate` of `num_ranks` ranks have sent theirs. It then adds them along the
/// canonical tree in rank order, divides by `divisor`, and applies the result once. Later gradients
/// for the step are dropped and counted.
struct SyncSpec {
  std::uint64_t step = 0;
  int rank = 0;
  int num_ranks = 1;
  int num_to_aggregate = 1;
  double divisor = 1.0;
  bool operator==(const SyncSpec&) const = default;
};

/// Immutable string that many operations share; copies refer to the same memory. Value type.
class SharedText {
 public:
  SharedText() = default;
  SharedText(std::string text) : text_(std::make_shared<const std::string>(std::move(text))) {}
  SharedText(const char* text) : SharedText(std::string(text)) {}
  const std::string& text() const;
  operator const std::string&() const { return text(); }
  std::size_t size() const { return text().size(); }
  friend bool operator==(const SharedText& a, const SharedText& b) {
    return a.text_ == b.text_ || a.text() == b.text();
  }
  friend bool operator==(const SharedText& a, const char* b) { return a.text() == b; }

 private:
  std::shared_ptr<const std::string> text_;  // null: ""
};

/// Applies the rule to the shard and its slots, which are shards of the same rows on this server,
/// in the order of UpdateRule::slots(). `rule`: describe_update_rule(). `gradient`: dense values of
/// the shard's shape or, with `rows`, values [n, ...]. `rows` (int64 [n]) are row numbers within
/// the shard, in any order; the gradients of repeated rows are added in the order of their
/// positions.
///
/// With the rule kAddOnce and a SyncSpec, the gradient, which is equal on all ranks, is added once
/// when the step is complete. Used for counters of synchronous steps.
inline constexpr const char* kAddOnce = "add once";
struct UpdateShard {
  ShardId shard = 0;
  std::vector<ShardId> slots = {};
  SharedText rule = {};
  UpdateScalars scalars = {};
  std::optional<Tensor> rows = {};
  Tensor gradient = {};
  std::optional<SyncSpec> sync = {};
};

/// Reads the ranks, int64 [n], of the workers that have yet to send the gradients for which reads
/// wait (ReadShard::at_least_steps).
struct ReadAwaited {};

/// Reports that a worker that trains in synchronous steps (SyncSpec) has started or ended. After
/// the end, a read fails if it waits for a step that needs this worker's gradient. A worker whose
/// connection broke is in neither state, because it may be restarted.
struct ReportWorker {
  int worker = 0;  // rank of the worker
  bool has_ended = false;
};

/// Command from a job's coordinator: the first operation of a batch, whose other operations read or
/// create shards. The first order binds a store to the run of that order. The store refuses
/// (kAborted) orders of other runs, because the store's process is about to end. It also refuses
/// orders of a generation other than its own, because the coordinator then expects another process;
/// only a kClose may begin a later generation.
struct StoreOrder {
  enum class Kind : std::uint8_t {
    kOpen = 1,    // opens the store; closures with ids below `number` are finished
    kClose,       // begins this generation: other batches wait until kOpen
    kRestore,     // assigns the values of the batch's CreateShards, even to existing shards
    kList,        // replies with the specs of the existing shards (decode_specs())
    kFreeze,      // keeps the current values of all shards until the next kFreeze or kRelease
    kReadFrozen,  // reads in the batch return the frozen values
    kRelease,
  };
  Kind kind = Kind::kOpen;
  std::uint64_t run = 0;  // random number that identifies the coordinator
  std::uint64_t generation = 0;
  /// kOpen and kClose: closures with ids below this number are finished. kFreeze: number of the
  /// freeze, so that a repeated order changes nothing.
  std::uint64_t number = 0;
  bool operator==(const StoreOrder&) const = default;
};

using Operation = std::variant<CreateShard, ReadShard, ReadRows, AssignShard, ScatterShard,
                               UpdateShard, ReadAwaited, ReportWorker, StoreOrder>;
/// Returns true if the operation changes the values of existing shards and must therefore be
/// applied exactly once.
inline bool changes_values(const Operation& operation) {
  return std::holds_alternative<AssignShard>(operation) ||
         std::holds_alternative<ScatterShard>(operation) ||
         std::holds_alternative<UpdateShard>(operation);
}

/// Returns the id with which servers identify a closure: its coordinator's generation
/// (ClosureLedger), followed by the closure's number. Ids of a later generation are greater than
/// all ids of an earlier one.
inline constexpr int kClosureNumberBits = 40;
inline std::uint64_t closure_id(std::uint64_t generation, std::uint64_t number) {
  return (generation << kClosureNumberBits) | number;
}
inline std::uint64_t closure_number(std::uint64_t id) {
  return id & ((std::uint64_t{1} << kClosureNumberBits) - 1);
}

/// Sequence of changes made by a client (identified by its random number) or by a closure
/// (identified by its id, which is the same for retries). Each replica of a closure has its own
/// stream.
struct UpdateStream {
  enum class Kind : std::uint8_t { kClient = 1, kClosure = 2 } kind = Kind::kClient;
  std::uint64_t id = 0;
  std::uint32_t replica = 0;
  auto operator<=>(const UpdateStream&) const = default;
};

/// Operations that a server applies atomically: it checks all of them before it applies the first.
/// Operations that change values are numbered from 0 within their stream, separately for each
/// server. An operation whose number is below the next one expected gets a reply but is not applied
/// again.
struct OperationBatch {
  UpdateStream stream = {};
  std::uint64_t run = 0;            // for a closure: StoreOrder::run of its coordinator
  std::uint64_t first_ordinal = 0;  // number of the first operation that changes values
  /// Closures with ids below this value are finished: their changes are refused (kAborted).
  std::uint64_t finished_below = 0;
  std::vector<Operation> operations = {};
};
/// Returns the StoreOrder at the beginning of the batch; nullptr if another operation comes first.
inline const StoreOrder* order_in(const OperationBatch& batch) {
  return batch.operations.empty() ? nullptr : std::get_if<StoreOrder>(&batch.operations.front());
}
/// Returns the number of operations that change values.
std::uint64_t num_changes(const OperationBatch& batch);

/// Reply to one operation. The replies to a batch are in the order of its operations.
struct OperationAnswer {
  /// Value that was read; nullopt if the client's version is current, or for other operations.
  std::optional<Tensor> value = {};
  std::uint64_t version = 0;        // version of the shard, after the operation
  std::uint64_t num_steps = 0;      // synchronous steps applied to the shard
  bool was_applied_before = false;  // true if an earlier attempt applied it
};

/// Encodes a request to a server. The head is an OperationBatch message
/// (cluster/proto/parameter_server.proto), and the payload (tensor_payload.h) shares the memory of
/// tensors in the batch. Throws kInvalidArgument for a batch beyond the limits below or with
/// undefined tensors, and kResourceExhausted for a head longer than kLongestHead (split the batch).
Packet encode(const OperationBatch& batch);
/// Throws kDataLoss for a packet that encode() cannot have written; checks the head against the
/// payload before allocating memory. Tensors may share the memory in which the request was
/// received, so code that keeps a tensor should copy it (see VariableComponent) to release that
/// memory.
OperationBatch decode_batch(const Packet& packet);

/// Encodes specs as the bytes of a tensor. decode_specs() is the inverse, and throws kDataLoss for
/// bytes that it cannot parse.
Tensor encode_specs(const std::vector<ShardSpec>& specs);
std::vector<ShardSpec> decode_specs(const Tensor& bytes);

Packet encode(const std::vector<OperationAnswer>& answers);
std::vector<OperationAnswer> decode_answers(const Packet& packet);

inline constexpr std::size_t kMostOperations = std::size_t{1} << 16;
inline constexpr std::size_t kLongestVariableName = 4096;
inline constexpr std::size_t kLongestRule = std::size_t{1} << 16;
inline constexpr std::size_t kMostSlots = 64;

}  // namespace tutti::internal
