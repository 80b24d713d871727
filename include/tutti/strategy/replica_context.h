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

/// One replica of a running step; the default context (outside every scope) is a single replica.
/// All replicas must call all_reduce, all_gather and merge_call in the same order; a mismatch
/// throws an error that names the replicas within a second, rather than hanging. Throws
/// kFailedPrecondition if called on a thread other than the replica's own.
/// tf.distribute.ReplicaContext.
class ReplicaContext {
 public:
  virtual ~ReplicaContext() = default;

  /// Returns the context of this thread. Throws kFailedPrecondition inside scope() but outside run
  /// ("cross-replica context").
  static ReplicaContext& current();

  /// Returns 0 .. num_replicas_in_sync - 1.
  virtual int replica_id() const = 0;
  /// Return the number of replicas that run the step, and this one's device and strategy.
  virtual int num_replicas_in_sync() const = 0;
  virtual Device device() const = 0;
  virtual Strategy& strategy() const = 0;

  /// Reduces one value. Differentiable: its gradient is the all_reduce (same op) of the gradient.
  Tensor all_reduce(ReduceOp op, const Tensor& value,
                    SourceLocation where = SourceLocation::current());
  /// Reduces several values at once, dense and sparse mixed; results are in the caller's order.
  std::vector<Gradient> all_reduce(ReduceOp op, std::span<const Gradient> values,
                                   SourceLocation where = SourceLocation::current());
  /// Concatenates in replica order along `axis`, whose lengths may differ. Differentiable.
  Tensor all_gather(const Tensor& value, int axis,
                    SourceLocation where = SourceLocation::current());
  /// Gathers several values, one after the other.
  std::vector<Tensor> all_gather(std::span<const Tensor> values, int axis,
                                 SourceLocation where = SourceLocation::current());

  /// Blocks until every replica has called it and calls `fn(strategy, PerReplica<T>)` ONCE on the
  /// thread that called run(). Returns this replica's element of the result if that is a
  /// PerReplica, else the result itself. `fn` may call strategy.run(), and has no device scope.
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
  /// `type` is the type that `local` points to, equal in all replicas.
  virtual std::shared_ptr<const void> merge_erased(const void* local, const std::type_info& type,
                                                   const ErasedMerge& merge,
                                                   SourceLocation where) = 0;
  /// Reduces without recording on the tape; the public functions add the gradient.
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

/// For strategies that schedule their own replicas: sets the replica of this thread while it lives.
class ReplicaScope {
 public:
  ReplicaScope(Strategy& strategy, ReplicaContext& replica);
  ~ReplicaScope();
  ReplicaScope(const ReplicaScope&) = delete;
  ReplicaScope& operator=(const ReplicaScope&) = delete;

 private:
  const std::unique_ptr<internal::StrategyModeScope> mode_;
};

/// tf's queries about the calling thread. Outside every scope: replica context, default strategy,
/// has_strategy() false. Inside scope(): cross-replica context. Inside run: replica context.
bool in_cross_replica_context();
bool in_replica_context();
bool has_strategy();
/// Returns the strategy of this thread, or the default strategy.
Strategy& get_strategy();
/// Makes `strategy` that of this thread until the next call, like a scope that stays open; nullptr
/// resets it. The strategy must stay alive until then. Throws kFailedPrecondition inside a scope or
/// a replica. tf.distribute.experimental_set_strategy.
void set_strategy(Strategy* strategy);
/// Returns the strategy whose cross-replica context this is; nullptr in any replica.
Strategy* get_cross_replica_context();
/// Returns nullptr in a cross-replica context.
ReplicaContext* get_replica_context();

/// Makes its strategy the current one of this thread for its lifetime, in cross-replica context;
/// variables are then created by it. Closed by its destructor (or close()). Scopes of a thread,
/// including those of variable creators and devices, must be closed in reverse order. Otherwise
/// close() throws kFailedPrecondition ("scope nesting error"), and the destructor logs an error.
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
  /// Reopens it after close().
  void reopen();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tutti
