// VariableStorage: the interface to the stored values of a variable, wherever they are placed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tutti/tensor/gradient.h"
#include "tutti/tensor/scatter_op.h"
#include "tutti/tensor/update_rule.h"
#include "tutti/tensor/variable_memory.h"

namespace tutti {

/// Time at which the copies of a variable are synchronized: tf.VariableSynchronization. kAuto means
/// kOnWrite.
enum class VariableSynchronization { kAuto = 0, kNone = 1, kOnWrite = 2, kOnRead = 3 };

/// Operation that combines the values that replicas assign: tf.VariableAggregation.
enum class VariableAggregation { kNone = 0, kSum = 1, kMean = 2, kOnlyFirstReplica = 3 };

std::ostream& operator<<(std::ostream& out, VariableSynchronization synchronization);
std::ostream& operator<<(std::ostream& out, VariableAggregation aggregation);

/// Arguments of tf.Variable: name, trainability, and synchronization across replicas.
struct VariableOptions {
  std::string name = "";  // empty: "variable_<number>"
  /// Default: true for floating-point types, except for ON_READ variables.
  std::optional<bool> trainable = std::nullopt;
  VariableSynchronization synchronization = VariableSynchronization::kAuto;
  VariableAggregation aggregation = VariableAggregation::kNone;
  /// If true, a replica may assign an ON_WRITE variable with aggregation NONE; its copies may then
  /// differ.
  bool allow_divergent = false;
  /// If true, layers with a mixed-precision policy read floating-point variables in their compute
  /// type.
  bool autocast = true;
  /// True for a number that the host reads, such as the iteration: GPU strategies keep it in host
  /// memory, so that the host need not wait for a GPU.
  bool on_host = false;
};

class Variable;

/// Operation that a write performs.
enum class AssignOp { kAssign, kAdd, kSubtract };
/// Origin of a written value: computed (may differ between replicas), or a constant of the program.
enum class ValueOrigin { kComputed, kPlain };

std::ostream& operator<<(std::ostream& out, AssignOp op);
std::ostream& operator<<(std::ostream& out, ScatterOp op);

/// A tensor of a checkpoint and the name under which it is stored.
struct NamedTensor {
  std::string name;
  Tensor value;
};
/// Returns the stored tensor of that name; an undefined Tensor if there is none.
using TensorLookup = std::function<Tensor(const std::string& name)>;

/// This process's part of a tensor in a checkpoint: consecutive elements in row-major order,
/// beginning with element `first`.
struct TensorPart {
  std::string name;
  Shape shape;  // shape of the full tensor
  DType dtype = DType::kFloat32;
  std::int64_t first = 0;
  std::vector<Tensor> values = {};  // consecutive elements, in rank-1 tensors
  bool has_others = false;          // true if other processes store other parts

  std::int64_t count() const;
  bool is_whole() const { return count() == shape.num_elements(); }
};

/// Interface to the stored values of a variable. Each placement implements it: local (here);
/// mirrored, sync-on-read, central and sharded (strategy/); remote. The effect of a call depends on
/// the calling thread's context (inside or outside of a replica): see each placement.
class VariableStorage {
 public:
  virtual ~VariableStorage() = default;

  const VariableOptions& options() const { return options_; }
  const std::string& name() const { return options_.name; }
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  bool trainable() const { return *options_.trainable; }
  /// Number that identifies the variable on tapes.
  std::uint64_t id() const { return id_; }

  /// Returns this replica's component; outside of replicas, follows tf's cross-replica rule
  /// (component 0, or the aggregate of an ON_READ variable). The result shares the component's
  /// buffer and never changes.
  virtual Tensor read() const = 0;
  /// Same as read(), but may return the value as `dtype` if other processes can then send fewer
  /// bytes. Requires: both types are floating-point.
  virtual Tensor read_as(DType /*dtype*/) const { return read(); }
  /// Returns nullopt if tapes keep the values that read() returned. If tapes must release them and
  /// call read() again in the backward pass, returns a number that changes with each write.
  virtual std::optional<std::uint64_t> released_version() const { return std::nullopt; }
  /// Returns true if read_rows() transfers less than read(), because values are in another process.
  virtual bool reads_rows() const { return false; }
  /// Returns the rows of read() at the indices `rows` (int64 [n], ascending, in range): [n, ...].
  virtual Tensor read_rows(const Tensor& rows) const;
  /// Returns the components of this process, in replica order (ON_READ) or in device order
  /// (ON_WRITE).
  virtual std::vector<Tensor> local_components() const = 0;
  virtual std::vector<Device> devices() const = 0;

  /// Writes `value`. In a replica, the write follows options().aggregation and is a collective call
  /// on all replicas unless it is local. Outside replicas, it writes all components.
  virtual void assign(AssignOp op, const Tensor& value, ValueOrigin origin) = 0;
  /// Writes each component once, without synchronization. Every replica passes a bit-identical
  /// `value`; outside of replicas, there is one call. The caller ensures that no replica reads
  /// until all replicas have written: optimizers call it between GradientReducer::finish() and
  /// updates_done().
  virtual void assign_replicated(AssignOp op, const Tensor& value) = 0;
  virtual void scatter(ScatterOp op, const IndexedSlices& slices) = 0;

  /// Creates a non-trainable variable of this shape and placement, filled with `initial_value`.
  virtual Variable create_slot(const std::string& name, double initial_value) = 0;
  /// Applies `rule` with a gradient that is equal on all replicas. The conditions of
  /// assign_replicated() apply. `slots` are results of this storage's create_slot(), in the order
  /// of rule.slots().
  virtual void update(const UpdateRule& rule, std::span<const Variable> slots,
                      const Gradient& gradient, const UpdateScalars& scalars) = 0;

  /// Returns the tensors for a checkpoint: the value, under the variable's name. ON_READ variables
  /// add each component under "<name>/replica_<v>" and, with aggregation MEAN, the replicas' update
  /// counts under "<name>/replica_updates". Must be called outside replicas.
  virtual std::vector<NamedTensor> save() const = 0;
  /// Restores values: by component if the checkpoint has exactly these replicas, else from the
  /// aggregate by tf's rule (ON_READ SUM: divided by the number of replicas). Throws kNotFound,
  /// naming the variable, if it is missing, and kInvalidArgument, naming both shapes or dtypes, if
  /// they differ.
  virtual void restore(const TensorLookup& lookup) = 0;
  /// Returns this process's part of a variable that is sharded over processes or devices; nullopt
  /// if each process stores the entire variable. Not collective. Must be called outside replicas.
  virtual std::optional<TensorPart> save_part() const { return std::nullopt; }
  /// Replaces the elements that save_part() returns with `elements`, a tensor [count] on the host.
  virtual void restore_part(const Tensor& elements);

  /// Returns the strategy whose scope created this variable, or null; compared only by address.
  const void* owner() const { return owner_; }

 protected:
  /// Fills in the defaults of options that are not set: name, trainable, and kOnWrite for kAuto.
  VariableStorage(const Shape& shape, DType dtype, VariableOptions options, const void* owner);

  /// Returns `value` cast to this variable's dtype. Throws kInvalidArgument, naming the variable,
  /// the method and both shapes, if the shapes differ.
  Tensor checked_value(const Tensor& value, const char* method) const;
  /// Same as checked_value(), but also rejects arithmetic on bool.
  Tensor checked_operand(AssignOp op, const Tensor& value) const;
  /// Returns a checkpoint's value after checking its shape and dtype.
  Tensor checked_restore(const TensorLookup& lookup, const std::string& key) const;

 private:
  VariableOptions options_;
  Shape shape_;
  DType dtype_;
  const void* owner_;
  std::uint64_t id_;
};

/// Buffer on one device, with the operations that write it: the building block of placements. Not
/// thread-safe.
class VariableComponent {
 public:
  VariableComponent(const Tensor& initial_value, Device device)
      : memory_(std::make_shared<VariableMemory>(initial_value, device)) {}
  Tensor read() const { return memory_->read(); }
  Device device() const { return memory_->device(); }
  void assign(AssignOp op, const Tensor& value);
  /// Throws if a row is out of range. If the variable and the indices are both on a GPU, such rows
  /// are ignored instead, because a kernel cannot throw.
  void scatter(ScatterOp op, const IndexedSlices& slices, const std::string& name);
  /// Applies the rule in place. A sparse gradient updates only its rows if the rule permits that.
  static void update(VariableComponent& weights, std::span<VariableComponent* const> slots,
                     const UpdateRule& rule, const Gradient& gradient,
                     const UpdateScalars& scalars);

 private:
  /// Updates the weights with the rule's kernel or, if it has none, on the host.
  static void update_on_gpu(VariableComponent& weights, std::span<VariableComponent* const> slots,
                            const UpdateRule& rule, const Gradient& gradient,
                            const UpdateScalars& scalars);
  std::shared_ptr<VariableMemory> memory_;  // shared with captured steps that use it
};

namespace internal {
/// Throws kInvalidArgument, with `who` first in the message, unless `slices` are rows of a tensor
/// of this shape and type.
void check_slices(const IndexedSlices& slices, const Shape& shape, DType dtype,
                  const std::string& who);
/// Returns the indices on the host, as int64. Throws kInvalidArgument if one is not in [0,
/// `num_rows`).
std::vector<std::int64_t> checked_rows(const Tensor& indices, std::int64_t num_rows,
                                       const std::string& who);
}  // namespace internal

}  // namespace tutti
