// The variable: a named, mutable tensor.
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

/// What an initializer is told: where the value is wanted, and the random key of this variable
/// ((seed, number of the variable)).
struct InitializerContext {
  Device device;
  RandomKey key;
};

/// A named, mutable tensor. A handle: copies name the same variable. Where its values live is
/// decided by the strategy whose scope was active at construction; the holder never needs to know.
/// tf.Variable.
class Variable {
 public:
  using Initializer = std::function<Tensor(const InitializerContext&)>;

  /// Names no variable: everything but defined() throws kFailedPrecondition.
  Variable() = default;
  /// Throws kFailedPrecondition inside run (naming variable and remedy).
  explicit Variable(const Initializer& initializer, VariableOptions options = {});
  explicit Variable(const Tensor& initial_value, VariableOptions options = {});
  explicit Variable(std::shared_ptr<VariableStorage> storage) : storage_(std::move(storage)) {}

  bool defined() const { return storage_ != nullptr; }
  const std::string& name() const { return storage().name(); }
  const Shape& shape() const { return storage().shape(); }
  DType dtype() const { return storage().dtype(); }
  bool trainable() const { return storage().trainable(); }

  /// Read as VariableStorage::read() says, in the type of an AutocastScope; recorded by the tapes
  /// of this thread.
  Tensor value() const;
  operator Tensor() const { return value(); }
  /// `w[i]`, `w[-1]`, `w[{Range{1, 3}, 0}]`: value()[...]. Of a variable in parts or on parameter
  /// servers only the rows that are asked for are read (embedding_lookup()), and their gradient is
  /// IndexedSlices. tf.Variable's and ShardedVariable's __getitem__.
  Tensor operator[](const Index& index) const { return (*this)[{index}]; }
  Tensor operator[](std::initializer_list<Index> indices) const;

  /// Writes the value, or adds to it, or subtracts. A plain number fills the shape. In a replica it
  /// is "the very same value on all replicas".
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
  /// Whether both handles name one variable.
  bool operator==(const Variable& other) const { return storage_ == other.storage_; }

 private:
  void write(AssignOp op, const Tensor& value);
  void write(AssignOp op, double value);
  void scatter(ScatterOp op, const IndexedSlices& slices);

  std::shared_ptr<VariableStorage> storage_;
};

/// Decides where new variables live. The scope of a strategy installs its own; the default keeps
/// one component on current_device(): cpu:0 outside of device scopes.
class VariableCreator {
 public:
  virtual ~VariableCreator() = default;
  /// `options.name` is filled in. Initial values come from `initializer`, called once.
  virtual std::shared_ptr<VariableStorage> create(const Variable::Initializer& initializer,
                                                  const RandomKey& key,
                                                  VariableOptions options) = 0;
  /// That of this thread.
  static VariableCreator& current();
};

/// Makes `creator` current on this thread until destroyed.
class VariableCreatorScope : internal::ThreadScope<VariableCreator*> {
 public:
  explicit VariableCreatorScope(VariableCreator& creator);
};

/// A variable with one component on `device`, whatever scope is active.
std::shared_ptr<VariableStorage> make_local_storage(const Tensor& initial_value, Device device,
                                                    VariableOptions options,
                                                    const void* owner = nullptr);

/// XXH3-128 over name, dtype, shape and plain little-endian values of the variables in this order;
/// ON_READ ones as aggregated. Outside replicas. docs/determinism.md.
std::string hash_variables(std::span<const Variable> variables,
                           const SourceLocation& where = SourceLocation::current());

/// In a replica an ON_READ variable reads as this replica's component. While this object lives it
/// reads as the aggregate over all replicas (all replicas must then read it): tf's
/// variable_sync_on_read_context.
class AggregateOnReadScope : internal::ThreadScope<bool> {
 public:
  AggregateOnReadScope();
  static bool active();
};

/// While it lives, floating variables that are read on this thread are cast to `dtype`, unless
/// their VariableOptions::autocast is false; nothing: they are read as they are. Gradients are
/// those of the variable, of its own type. Scopes nest, the innermost counts. Layers open one
/// around call(). keras.src.backend.AutocastScope.
class AutocastScope : internal::ThreadScope<std::optional<DType>> {
 public:
  explicit AutocastScope(std::optional<DType> dtype);
  /// That of this thread's innermost scope.
  static std::optional<DType> current();
};

}  // namespace tutti
