// Context of code that runs inside one replica.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <type_traits>
#include <typeinfo>
#include <vector>

#include "tutti/core/source_location.h"
#include "tutti/cross_device_ops/per_replica.h"
#include "tutti/data/element.h"
#include "tutti/tensor/gradient.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti {

class Strategy;
namespace internal {
class StrategyModeScope;
}  // namespace internal

/// One replica of a running step. Outside any scope, the default context is a single replica. All
/// replicas must call all_reduce, all_gather and merge_call in the same order. If they do not, the
/// calls throw within a second, with an error that names the replicas. Calls on a thread other than
/// the replica's own throw kFailedPrecondition. Like tf.distribute.ReplicaContext.
class ReplicaContext {
 public:
  virtual ~ReplicaContext() = default;

  /// Returns the context of this thread. Throws kFailedPrecondition inside scope() but outside run
  /// ("cross-replica context").
  static ReplicaContext& current();

  /// Returns 0 .. num_replicas_in_sync - 1.
  virtual int replica_id() const = 0;
  /// Return the number of replicas that run the step, and this replica's device and strategy.
  virtual int num_replicas_in_sync() const = 0;
  virtual Device device() const = 0;
  virtual Strategy& strategy() const = 0;

  /// Returns `value` reduced over all replicas. Differentiable for SUM and MEAN: the gradient is
  /// all-reduced with the same op.
  Tensor all_reduce(ReduceOp op, const Tensor& value,
                    SourceLocation where = SourceLocation::current());
  /// Reduces several values, dense or sparse, at once; returns the results in the same order.
  std::vector<Gradient> all_reduce(ReduceOp op, std::span<const Gradient> values,
                                   SourceLocation where = SourceLocation::current());
  /// Returns all replicas' values, concatenated in replica order along `axis`. Only their lengths
  /// along `axis` may differ. Differentiable.
  Tensor all_gather(const Tensor& value, int axis,
                    SourceLocation where = SourceLocation::current());
  /// Same as above, but for several values, gathered one after the other.
  std::vector<Tensor> all_gather(std::span<const Tensor> values, int axis,
                                 SourceLocation where = SourceLocation::current());

  /// Waits until every replica has called merge_call, then calls `fn(strategy, PerReplica<T>)`
  /// ONCE, on the thread that called run(). If the result is a PerReplica, returns this replica's
  /// element of it; otherwise returns the result itself. `fn` may call strategy.run() and runs
  /// outside device scopes.
  template <class Fn, class T>
  auto merge_call(Fn&& fn, const T& local, SourceLocation where = SourceLocation::current()) {
    using R = std::invoke_result_t<Fn&, Strategy&, const PerReplica<T>&>;
    auto merge = [&fn](Strategy& strategy, std::span<const void* const> locals) {
      std::vector<T> values;
      for (const void* value : locals) values.push_back(*static_cast<const T*>(value));
      if constexpr (std::is_void_v<R>) {
        fn(strategy, PerReplica<T>(std::move(values)));
        return std::shared_ptr<const void>();
      } else {
        return std::shared_ptr<const void>(
            std::make_shared<const R>(fn(strategy, PerReplica<T>(std::move(values)))));
      }
    };
    std::shared_ptr<const void> result = merge_erased(&local, typeid(T), merge, where);
    if constexpr (is_per_replica<R>) {
      return (*static_cast<const R*>(result.get()))[static_cast<std::size_t>(local_index())];
    } else if constexpr (!std::is_void_v<R>) {
      return *static_cast<const R*>(result.get());
    }
  }

 protected:
  using ErasedMerge = std::function<std::shared_ptr<const void>(
      Strategy& strategy, std::span<const void* const> locals)>;
  /// Returns the index of this replica within the process.
  virtual int local_index() const = 0;
  /// `type`: type of the object that `local` points to; must be equal on all replicas.
  virtual std::shared_ptr<const void> merge_erased(const void* local, const std::type_info& type,
                                                   const ErasedMerge& merge,
                                                   SourceLocation where) = 0;
  /// Reduces without recording on the tape; the public functions record the operation.
  virtual std::vector<Gradient> all_reduce_values(ReduceOp op, std::span<const Gradient> values,
                                                  SourceLocation where) = 0;
  /// Concatenation of all replicas' values, and the offset of this replica's part in it.
  struct Gathered {
    Tensor value;
    std::int64_t first = 0;
  };
  virtual Gathered all_gather_value(const Tensor& value, int axis, SourceLocation where) = 0;
  /// Called with each batch that the step receives.
  virtual void note_batch(const Batch&) {}
  /// Called with each number that the step returns.
  virtual void note_result(double) {}

  friend class Strategy;
};

/// Scope that sets the replica of this thread, for strategies that schedule their own replicas.
class ReplicaScope {
 public:
  ReplicaScope(Strategy& strategy, ReplicaContext& replica);
  ~ReplicaScope();
  ReplicaScope(const ReplicaScope&) = delete;
  ReplicaScope& operator=(const ReplicaScope&) = delete;

 private:
  const std::unique_ptr<internal::StrategyModeScope> mode_;
};

/// Return properties of the calling thread, as in tf. Outside any scope, the thread is in the
/// replica context of the default strategy, and has_strategy() is false. Inside scope() it is in a
/// cross-replica context, and inside run() in a replica context.
bool in_cross_replica_context();
bool in_replica_context();
bool has_strategy();
/// Returns the strategy of this thread, or the default strategy.
Strategy& get_strategy();
/// Sets the strategy of this thread until the next call, like a scope that stays open; nullptr
/// resets it. The strategy must stay alive until the next call. Throws kFailedPrecondition inside a
/// scope or a replica. Corresponds to tf.distribute.experimental_set_strategy.
void set_strategy(Strategy* strategy);
/// Returns the strategy of the current cross-replica context; nullptr in a replica context.
Strategy* get_cross_replica_context();
/// Returns the current replica's context; nullptr in a cross-replica context.
ReplicaContext* get_replica_context();

/// Scope in which a strategy is current on this thread, in cross-replica context, and creates all
/// variables. Ends on close() or destruction. A thread's scopes, including variable-creator and
/// device scopes, must be closed in reverse order. Otherwise close() throws kFailedPrecondition
/// ("scope nesting error"), and the destructor logs an error.
class Scope {
 public:
  explicit Scope(Strategy& strategy);
  ~Scope();
  Scope(Scope&&) noexcept;
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  Scope& operator=(Scope&&) = delete;

  Strategy& strategy() const;
  void close();
  /// Reopens the scope after close().
  void reopen();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tutti
