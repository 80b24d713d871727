// What clients ask of a parameter server: operations on shards, in batches that are applied once.
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

/// Rows of a variable on one server. Its id is a hash of the variable's name and the number of the
/// shard, so that clients that never met agree on it (a collision is an error when it is made).
using ShardId = std::uint64_t;
ShardId shard_id(const std::string& variable, int shard);

struct ShardSpec {
  std::string variable = {};
  DType dtype = DType::kFloat32;
  Shape whole_shape = {};  // of the variable
  int shard = 0;
  int num_shards = 1;
  std::int64_t first_row = 0;  // of a scalar: 0 and 1
  std::int64_t num_rows = 1;
  Shape shape() const;  // of the shard
  /// Whether there are such rows of the whole.
  bool has_rows() const;
  ShardId id() const { return shard_id(variable, shard); }
  /// "'embedding' (shard 1 of 4)".
  std::string to_string() const;
  bool operator==(const ShardSpec&) const = default;
};

/// Makes the shard unless it is there. One that is there keeps its values, and is compared: another
/// spec is kInvalidArgument naming both. Values: a generator, or those of the shard's rows.
struct CreateShard {
  ShardSpec spec = {};
  std::variant<ValueGenerator, Tensor> initial_value = {};
};
/// Answered with the values, or with none when `have_version` is still the present one.
struct ReadShard {
  ShardId shard = 0;
  std::uint64_t have_version = 0;  // 0: none
  /// Waits until this many synchronous steps were applied (SyncSpec); 0: does not wait.
  std::uint64_t at_least_steps = 0;
};
/// rows: int64 [n], of the shard, any order. Answered with [n, ...].
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
/// rows: int64 [n] of the shard, any order; values [n, ...].
struct ScatterShard {
  ShardId shard = 0;
  ScatterOp op = ScatterOp::kUpdate;
  Tensor rows = {};
  Tensor values = {};
};

/// A synchronous step (SyncReplicas): the server holds what each rank gives for `step`, and when
/// `num_to_aggregate` ranks of `num_ranks` have given, adds it along the canonical tree in rank
/// order, divides by `divisor`, and applies it once. What comes for an earlier step is dropped and
/// counted. With fewer than all ranks: those who came first.
struct SyncSpec {
  std::uint64_t step = 0;
  int rank = 0;
  int num_ranks = 1;
  int num_to_aggregate = 1;
  double divisor = 1.0;
  bool operator==(const SyncSpec&) const = default;
};

/// A text that many operations share: copies name the same memory. A value.
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
/// in the order of UpdateRule::slots(). `rule`: describe_update_rule(). Gradient: dense values of
/// the shard's shape, or rows (int64 [n], of the shard, in any order, repeated ones added in
/// position order) with values [n, ...].
///
/// With the rule kAddOnce and a SyncSpec the gradient, the same of every rank, is added once when
/// the step is complete: counters of synchronous steps.
inline constexpr const char* kAddOnce = "add once";
struct UpdateShard {
  ShardId shard = 0;
  std::vector<ShardId> slots = {};
  SharedText rule = {};
  UpdateScalars scalars = {};
  std::optional<Tensor> rows = {};
  Tensor gradient = {};
  std::optional<SyncSpec> sync = {};
  /// Version of the shard that the gradient was computed from (0: not known): statistics count by
  /// how many changes it came late.
  std::uint64_t computed_at_version = 0;
};

/// Answered with ServerStatistics::to_tensor(). The only operation of its batch.
struct ReadStatistics {};

/// Reports that a worker whose gradients are added to those of others (SyncSpec) begins, or that it
/// has ended: a read of a step that needs its gradient fails from then on. A worker whose
/// connection broke is in neither state, since it may be started again.
struct ReportWorker {
  int worker = 0;  // its rank
  bool has_ended = false;
};

/// An order of the coordinator of a job, the first operation of a batch whose other operations are
/// reads or creations of shards. A store refuses (kAborted) orders of another run than the first
/// one that it heard of, for its process is about to end, and, but for kClose, those of another
/// generation than its own: its process is not the one that the coordinator believes in.
struct StoreOrder {
  enum class Kind : std::uint8_t {
    kOpen = 1,    // serves; with closures below `number` finished, and no others known
    kClose,       // begins this generation: from here to kOpen other batches wait
    kRestore,     // shards that the batch makes get their values also if they are there
    kList,        // answered with the shards that are there (decode_specs())
    kFreeze,      // keeps the present values of all shards, until the next kFreeze or kRelease
    kReadFrozen,  // reads of the batch are of those values
    kRelease,
  };
  Kind kind = Kind::kOpen;
  std::uint64_t run = 0;  // random, of the process that coordinates
  std::uint64_t generation = 0;
  /// kOpen and kClose: closures with ids below it are finished. kFreeze: counts freezes, so that
  /// one that comes again changes nothing.
  std::uint64_t number = 0;
  bool operator==(const StoreOrder&) const = default;
};

using Operation = std::variant<CreateShard, ReadShard, ReadRows, AssignShard, ScatterShard,
                               UpdateShard, ReadStatistics, ReportWorker, StoreOrder>;
/// Returns true if doing it twice would differ from once (all but creation, reads, reports and
/// orders).
inline bool changes_values(const Operation& operation) {
  return std::holds_alternative<AssignShard>(operation) ||
         std::holds_alternative<ScatterShard>(operation) ||
         std::holds_alternative<UpdateShard>(operation);
}

/// Identifies a closure to servers: its number, and the generation of its coordinator
/// (ClosureLedger). Ids of a later generation are greater than all of an earlier one.
inline constexpr int kClosureNumberBits = 40;
inline std::uint64_t closure_id(std::uint64_t generation, std::uint64_t number) {
  return (generation << kClosureNumberBits) | number;
}
inline std::uint64_t closure_number(std::uint64_t id) {
  return id & ((std::uint64_t{1} << kClosureNumberBits) - 1);
}

/// A source of changes with its own order: a client (its random number), or a closure, whose
/// id stays when it is tried again elsewhere. Replicas of a closure count for themselves.
struct UpdateStream {
  enum class Kind : std::uint8_t { kClient = 1, kClosure = 2 } kind = Kind::kClient;
  std::uint64_t id = 0;
  std::uint32_t replica = 0;
  auto operator<=>(const UpdateStream&) const = default;
};

/// All or nothing: no operation is applied before all were checked. Operations that change values
/// are numbered within their stream, per server, from 0; those below the number that the server has
/// seen are not applied again, and answered like the others.
struct OperationBatch {
  UpdateStream stream = {};
  std::uint64_t run = 0;            // of a closure: that of the coordinator's orders (StoreOrder)
  std::uint64_t first_ordinal = 0;  // of the first operation here that changes values
  /// Closures with ids below it are finished: changes of theirs are refused (kAborted).
  std::uint64_t finished_below = 0;
  std::vector<Operation> operations = {};
};
/// The order that the batch begins with; nullptr: it is none.
inline const StoreOrder* order_in(const OperationBatch& batch) {
  return batch.operations.empty() ? nullptr : std::get_if<StoreOrder>(&batch.operations.front());
}
/// Operations that change values.
std::uint64_t num_changes(const OperationBatch& batch);

/// For each operation of the batch, in order.
struct OperationAnswer {
  std::optional<Tensor> value = {};  // of reads; nothing when the version is still the same
  std::uint64_t version = 0;         // of the shard, after the operation
  std::uint64_t num_steps = 0;       // synchronous steps applied to it
  bool was_applied_before = false;   // by an earlier try
};

/// A request to a server. The head is a message OperationBatch
/// (cluster/proto/ parameter_server.proto), the payload (tensor_payload.h) shares the memory of
/// tensors in the batch. Throws kInvalidArgument for a batch beyond the limits below or with
/// undefined tensors, kResourceExhausted for a head that would be longer than kLongestHead (send it
/// in two).
Packet encode(const OperationBatch& batch);
/// Throws kDataLoss for a packet that encode() did not write: what stands in the head is compared
/// with the payload before memory is taken for it. Tensors stay in the memory that the payload was
/// received in: code that keeps one for longer than the batch copies it (VariableComponent does).
OperationBatch decode_batch(const Packet& packet);

/// Specs of shards as the bytes of a tensor, and the inverse, which throws kDataLoss for others.
Tensor encode_specs(const std::vector<ShardSpec>& specs);
std::vector<ShardSpec> decode_specs(const Tensor& bytes);

Packet encode(const std::vector<OperationAnswer>& answers);
std::vector<OperationAnswer> decode_answers(const Packet& packet);

inline constexpr std::size_t kMostOperations = std::size_t{1} << 16;
inline constexpr std::size_t kLongestVariableName = 4096;
inline constexpr std::size_t kLongestRule = std::size_t{1} << 16;
inline constexpr std::size_t kMostSlots = 64;

}  // namespace tutti::internal
