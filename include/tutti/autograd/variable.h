// Variable: a named, mutable tensor.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>

#include "tutti/autograd/variable_storage.h"
#include "tutti/core/random.h"
#include "tutti/core/source_location.h"
#include "tutti/core/thread_scope.h"

namespace tutti {

/// Arguments of an initializer: the device of the value, and the variable's random key, which
/// consists of the seed and the variable's number.
struct InitializerContext {
  Device device;
  RandomKey key;
};

/// A named, mutable tensor (tf.Variable). Objects are handles: copies refer to the same variable.
/// The strategy whose scope was active at construction determines where the values are placed;
/// users need not know the placement.
class Variable {
 public:
  using Initializer = std::function<Tensor(const InitializerContext&)>;

  /// Creates an empty handle: defined() is false, and functions that access the variable throw
  /// kFailedPrecondition.
  Variable() = default;
  /// Creates a variable. Throws kFailedPrecondition, naming the variable and the remedy, in a
  /// replica (inside run()).
  explicit Variable(const Initializer& initializer, VariableOptions options = {});
  explicit Variable(const Tensor& initial_value, VariableOptions options = {});
  explicit Variable(std::shared_ptr<VariableStorage> storage) : storage_(std::move(storage)) {}

  bool defined() const { return storage_ != nullptr; }
  const std::string& name() const { return storage().name(); }
  const Shape& shape() const { return storage().shape(); }
  DType dtype() const { return storage().dtype(); }
  bool trainable() const { return storage().trainable(); }

  /// Returns the value as VariableStorage::read() does, cast to the type of the current
  /// AutocastScope, if any. Tapes of this thread record the read.
  Tensor value() const;
  operator Tensor() const { return value(); }
  /// Returns value()[...] for `w[i]`, `w[-1]`, `w[{Range{1, 3}, 0}]`. If the variable is sharded or
  /// on parameter servers, reads only the requested rows, as embedding_lookup() does, and their
  /// gradient is IndexedSlices. Like __getitem__ of tf.Variable and ShardedVariable.
  Tensor operator[](const Index& index) const { return (*this)[{index}]; }
  Tensor operator[](std::initializer_list<Index> indices) const;

  /// Assign, add or subtract `value`. A number is broadcast to the variable's shape; in a replica,
  /// it is assumed to be equal on all replicas.
  void assign(const Tensor& value) { write(AssignOp::kAssign, value); }
  void assign_add(const Tensor& value) { write(AssignOp::kAdd, value); }
  void assign_sub(const Tensor& value) { write(AssignOp::kSubtract, value); }
  void assign(double value) { write(AssignOp::kAssign, value); }
  void assign_add(double value) { write(AssignOp::kAdd, value); }
  void assign_sub(double value) { write(AssignOp::kSubtract, value); }

  void scatter_add(const IndexedSlices& slices) { scatter(ScatterOp::kAdd, slices); }
  void scatter_sub(const IndexedSlices& slices) { scatter(ScatterOp::kSubtract, slices); }
  void scatter_mul(const IndexedSlices& slices) { scatter(ScatterOp::kMultiply, slices); }
  void scatter_div(const IndexedSlices& slices) { scatter(ScatterOp::kDivide, slices); }
  void scatter_min(const IndexedSlices& slices) { scatter(ScatterOp::kMin, slices); }
  void scatter_max(const IndexedSlices& slices) { scatter(ScatterOp::kMax, slices); }
  void scatter_update(const IndexedSlices& slices) { scatter(ScatterOp::kUpdate, slices); }

  VariableStorage& storage() const;
  std::shared_ptr<VariableStorage> shared_storage() const { return storage_; }
  /// Returns true if both handles refer to the same variable.
  bool operator==(const Variable& other) const { return storage_ == other.storage_; }

 private:
  void write(AssignOp op, const Tensor& value);
  void write(AssignOp op, double value);
  void scatter(ScatterOp op, const IndexedSlices& slices);

  std::shared_ptr<VariableStorage> storage_;
};

/// Creates the storage of new variables. A strategy's scope installs its own creator; the default
/// creates one component on current_device(), which is cpu:0 outside device scopes.
class VariableCreator {
 public:
  virtual ~VariableCreator() = default;
  /// Creates the storage of one variable. Calls `initializer` once. Requires: `options.name` is
  /// set.
  virtual std::shared_ptr<VariableStorage> create(const Variable::Initializer& initializer,
                                                  const RandomKey& key,
                                                  VariableOptions options) = 0;
  /// Returns this thread's creator.
  static VariableCreator& current();
};

/// Scope in which `creator` is this thread's VariableCreator.
class VariableCreatorScope : internal::ThreadScope<VariableCreator*> {
 public:
  explicit VariableCreatorScope(VariableCreator& creator);
};

/// Creates a variable with one component on `device`, independently of the active scope.
std::shared_ptr<VariableStorage> make_local_storage(const Tensor& initial_value, Device device,
                                                    VariableOptions options,
                                                    const void* owner = nullptr);

/// Returns the XXH3-128 hash of the names, dtypes, shapes and little-endian values of the
/// variables, in order. The value of an ON_READ variable is its aggregate. Must not be called in a
/// replica. See docs/determinism.md.
std::string hash_variables(std::span<const Variable> variables,
                           const SourceLocation& where = SourceLocation::current());

/// Scope in which a replica that reads an ON_READ variable gets the aggregate over all replicas
/// instead of its own component. All replicas must then read the variable (tf's
/// variable_sync_on_read_context).
class AggregateOnReadScope : internal::ThreadScope<bool> {
 public:
  AggregateOnReadScope();
  static bool active();
};

/// Scope in which this thread reads floating-point variables cast to `dtype`, unless their
/// VariableOptions::autocast is false. nullopt: variables are not cast. Gradients have the
/// variable's own type. Scopes nest, and the innermost one applies. Layers open a scope around
/// call(). Equivalent of keras.src.backend.AutocastScope.
class AutocastScope : internal::ThreadScope<std::optional<DType>> {
 public:
  explicit AutocastScope(std::optional<DType> dtype);
  /// Returns the type of this thread's innermost scope.
  static std::optional<DType> current();
};

}  // namespace tutti
