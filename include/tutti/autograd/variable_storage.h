// Where a variable's values live: the interface that each kind of placement implements.
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

// How a variable behaves when there are several replicas.

/// When the copies of a variable are brought together: tf.VariableSynchronization. kAuto means
/// kOnWrite.
enum class VariableSynchronization { kAuto = 0, kNone = 1, kOnWrite = 2, kOnRead = 3 };

/// How values that replicas assign become one: tf.VariableAggregation.
enum class VariableAggregation { kNone = 0, kSum = 1, kMean = 2, kOnlyFirstReplica = 3 };

std::ostream& operator<<(std::ostream& out, VariableSynchronization synchronization);
std::ostream& operator<<(std::ostream& out, VariableAggregation aggregation);

/// How a variable is called, trained and kept equal over replicas: the arguments of tf.Variable.
struct VariableOptions {
  std::string name = "";  // empty: "variable_<number>"
  /// Default: true for floating types, except ON_READ variables.
  std::optional<bool> trainable = std::nullopt;
  VariableSynchronization synchronization = VariableSynchronization::kAuto;
  VariableAggregation aggregation = VariableAggregation::kNone;
  /// Permits assigning an ON_WRITE variable with aggregation NONE inside a replica: copies may then
  /// differ.
  bool allow_divergent = false;
  /// Layers of mixed policies read a floating variable in the type they compute in; false: as it
  /// is.
  bool autocast = true;
  /// A number that the host computes with, such as the iteration: on GPU strategies it stays in the
  /// host's memory, so that reading it waits for nothing.
  bool on_host = false;
};

class Variable;

/// What a write does with the value.
enum class AssignOp { kAssign, kAdd, kSubtract };
/// Whether a value was computed (and may differ between replicas) or is a number written in the
/// program.
enum class ValueOrigin { kComputed, kPlain };

std::ostream& operator<<(std::ostream& out, AssignOp op);
std::ostream& operator<<(std::ostream& out, ScatterOp op);

/// A tensor of a checkpoint and the name it is stored under.
struct NamedTensor {
  std::string name;
  Tensor value;
};
/// Finds a stored tensor by name; an undefined Tensor when there is none of that name.
using TensorLookup = std::function<Tensor(const std::string& name)>;

/// What one process has of a tensor of a checkpoint: its elements from `first` on, in row-major
/// order.
struct TensorPart {
  std::string name;
  Shape shape;  // of the whole
  DType dtype = DType::kFloat32;
  std::int64_t first = 0;
  std::vector<Tensor> values = {};  // [count] each, one after the other
  bool has_others = false;          // whether other processes have parts, too

  std::int64_t count() const;
  bool is_whole() const { return count() == shape.num_elements(); }
};

/// Implemented once per kind of placement: local (here), mirrored, sync-on-read, central, later
/// sharded (strategy/). What a call means depends on the context of the calling thread (a replica,
/// or outside): see each placement.
class VariableStorage {
 public:
  virtual ~VariableStorage() = default;

  const VariableOptions& options() const { return options_; }
  const std::string& name() const { return options_.name; }
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  bool trainable() const { return *options_.trainable; }
  /// The number by which tapes know this variable.
  std::uint64_t id() const { return id_; }

  /// In a replica: that replica's component; outside: tf's cross-replica rule (component 0, or the
  /// aggregate of an ON_READ variable). Shares the buffer: a tensor that was read never changes.
  virtual Tensor read() const = 0;
  /// read(), in `dtype` already where less moves that way: in parts that are elsewhere. Both are
  /// floating types.
  virtual Tensor read_as(DType /*dtype*/) const { return read(); }
  /// Whether read_rows() moves less than read(): values are in another process.
  virtual bool reads_rows() const { return false; }
  /// Rows `rows` (int64 [n], ascending, in range) of read(): [n, ...].
  virtual Tensor read_rows(const Tensor& rows) const;
  /// The components of this process, in replica (ON_READ) or device (ON_WRITE) order.
  virtual std::vector<Tensor> local_components() const = 0;
  virtual std::vector<Device> devices() const = 0;

  /// In a replica: follows options().aggregation, a meeting of all replicas unless the write is
  /// local. Outside: all components.
  virtual void assign(AssignOp op, const Tensor& value, ValueOrigin origin) = 0;
  /// Called by every replica with bit-identical `value` (or once, outside); written once per
  /// component, without a meeting. The caller sees to it that no replica reads before all are done:
  /// meant for optimizers, between GradientReducer::finish() and updates_done().
  virtual void assign_replicated(AssignOp op, const Tensor& value) = 0;
  virtual void scatter(ScatterOp op, const IndexedSlices& slices) = 0;

  /// A variable of this shape and placement named `name`, filled with `initial_value`; not
  /// trainable.
  virtual Variable create_slot(const std::string& name, double initial_value) = 0;
  /// Applies `rule` with a gradient that is equal in all replicas. Same calling rule as
  /// assign_replicated(). `slots` were made by create_slot() of this storage, in the order of
  /// rule.slots().
  virtual void update(const UpdateRule& rule, std::span<const Variable> slots,
                      const Gradient& gradient, const UpdateScalars& scalars) = 0;

  /// What a checkpoint holds of this variable: its value under its name; ON_READ variables also
  /// each component under "<name>/replica_<v>" and, with aggregation MEAN, their numbers of updates
  /// under "<name>/replica_updates". Outside replicas only.
  virtual std::vector<NamedTensor> save() const = 0;
  /// Takes values back: by component where the checkpoint has exactly these replicas, else from the
  /// aggregate by tf's rule (ON_READ SUM: divided by the number of replicas). Throws kNotFound
  /// naming the variable, kInvalidArgument naming both shapes or dtypes.
  virtual void restore(const TensorLookup& lookup) = 0;
  /// Of a variable that is cut over processes, or devices: what this process has of save(), which
  /// is one tensor. No call of others. Nothing: each process has all that save() gives. Outside
  /// replicas only.
  virtual std::optional<TensorPart> save_part() const { return std::nullopt; }
  /// Sets the elements of save_part(): `elements` [count], on the host.
  virtual void restore_part(const Tensor& elements);

  /// The strategy whose scope made this variable, or nullptr: compared by address only.
  const void* owner() const { return owner_; }

 protected:
  /// Fills in the defaults of `options` (name, trainable, kAuto -> kOnWrite) and checks them.
  VariableStorage(const Shape& shape, DType dtype, VariableOptions options, const void* owner);

  /// `value` as this variable's dtype; throws kInvalidArgument naming variable, method and both
  /// shapes when the shape differs.
  Tensor checked_value(const Tensor& value, const char* method) const;
  /// The same; also refuses arithmetic on bool.
  Tensor checked_operand(AssignOp op, const Tensor& value) const;
  /// `value` of a checkpoint, checked for shape and dtype.
  Tensor checked_restore(const TensorLookup& lookup, const std::string& key) const;

 private:
  VariableOptions options_;
  Shape shape_;
  DType dtype_;
  const void* owner_;
  std::uint64_t id_;
};

/// A single buffer on one device and the writes on it: what every placement is made of. Not
/// synchronised.
class VariableComponent {
 public:
  VariableComponent(const Tensor& initial_value, Device device)
      : memory_(std::make_shared<VariableMemory>(initial_value, device)) {}
  Tensor read() const { return memory_->read(); }
  Device device() const { return memory_->device(); }
  void assign(AssignOp op, const Tensor& value);
  /// Throws for rows out of range. On GPUs: for those that the host has (indices on a CPU); a
  /// kernel leaves others out, because it cannot throw.
  void scatter(ScatterOp op, const IndexedSlices& slices, const std::string& name);
  /// Elements of the rule in place; a sparse gradient touches its rows alone when the rule allows
  /// it.
  static void update(VariableComponent& weights, std::span<VariableComponent* const> slots,
                     const UpdateRule& rule, const Gradient& gradient,
                     const UpdateScalars& scalars);

 private:
  /// By the rule's kernel, or by way of the host where it has none.
  static void update_on_gpu(VariableComponent& weights, std::span<VariableComponent* const> slots,
                            const UpdateRule& rule, const Gradient& gradient,
                            const UpdateScalars& scalars);
  std::shared_ptr<VariableMemory> memory_;  // shared with captured steps that use it
};

namespace internal {
/// Throws kInvalidArgument, with `who` in front, unless `slices` are rows of a tensor of this
/// shape.
void check_slices(const IndexedSlices& slices, const Shape& shape, DType dtype,
                  const std::string& who);
/// The indices, on the host, as int64. Throws kInvalidArgument for one that is not below
/// `num_rows`.
std::vector<std::int64_t> checked_rows(const Tensor& indices, std::int64_t num_rows,
                                       const std::string& who);
}  // namespace internal

}  // namespace tutti
