// What code that runs inside one replica can ask and do.
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

/// One replica of a running step; the default context (outside every scope) is a replica alone. All
/// replicas must make the same calls of all_reduce, all_gather and merge_call in the same order; a
/// mismatch is an error that names the replicas, within a second, not a hang. Used by the replica's
/// own thread: elsewhere kFailedPrecondition. tf.distribute.ReplicaContext.
class ReplicaContext {
 public:
  virtual ~ReplicaContext() = default;

  /// The context of this thread. Throws kFailedPrecondition inside scope() but outside run
  /// ("cross-replica context").
  static ReplicaContext& current();

  /// 0 .. num_replicas_in_sync - 1.
  virtual int replica_id() const = 0;
  /// How many replicas run the step, where this one runs, and under which strategy.
  virtual int num_replicas_in_sync() const = 0;
  virtual Device device() const = 0;
  virtual Strategy& strategy() const = 0;

  /// Differentiable: its gradient is the all_reduce (same op) of the gradient.
  Tensor all_reduce(ReduceOp op, const Tensor& value,
                    SourceLocation where = SourceLocation::current());
  /// Several values in one meeting, dense and sparse mixed; results in the caller's order.
  std::vector<Gradient> all_reduce(ReduceOp op, std::span<const Gradient> values,
                                   SourceLocation where = SourceLocation::current());
  /// Differentiable: concatenates in replica order along `axis`; lengths along `axis` may differ.
  Tensor all_gather(const Tensor& value, int axis,
                    SourceLocation where = SourceLocation::current());
  /// Several values, one after the other.
  std::vector<Tensor> all_gather(std::span<const Tensor> values, int axis,
                                 SourceLocation where = SourceLocation::current());

  /// Stops until every replica is here, runs `fn(strategy, PerReplica<T>)` ONCE on the thread that
  /// called run(), and returns this replica's element of its result when that is a PerReplica, the
  /// result itself otherwise. `fn` may call strategy.run(), and has no device scope.
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
  /// Number of this replica among those of the process.
  virtual int local_index() const = 0;
  /// `type`: of what `local` points to; the same in all replicas.
  virtual std::shared_ptr<const void> merge_erased(const void* local, const std::type_info& type,
                                                   const ErasedMerge& merge,
                                                   SourceLocation where) = 0;
  /// Not recorded; the public functions add the gradient.
  virtual std::vector<Gradient> all_reduce_values(ReduceOp op, std::span<const Gradient> values,
                                                  SourceLocation where) = 0;
  /// The concatenation, and where this replica's part begins in it.
  struct Gathered {
    Tensor value;
    std::int64_t first = 0;
  };
  virtual Gathered all_gather_value(const Tensor& value, int axis, SourceLocation where) = 0;
  /// The step was called with this batch.
  virtual void note_batch(const Batch&) {}
  /// The step returned this number.
  virtual void note_result(double) {}

  friend class Strategy;
};

/// For strategies that schedule replicas of their own: until it is destroyed, `replica` is what
/// this thread runs.
class ReplicaScope {
 public:
  ReplicaScope(Strategy& strategy, ReplicaContext& replica);
  ~ReplicaScope();
  ReplicaScope(const ReplicaScope&) = delete;
  ReplicaScope& operator=(const ReplicaScope&) = delete;

 private:
  const std::unique_ptr<internal::StrategyModeScope> mode_;
};

/// tf's questions about the calling thread. Outside every scope: replica context, default strategy,
/// has_strategy() false. Inside scope(): cross-replica context. Inside run: replica context.
bool in_cross_replica_context();
bool in_replica_context();
bool has_strategy();
/// The strategy of this thread; the default strategy when there is none.
Strategy& get_strategy();
/// Makes `strategy` that of this thread until the next call, like a scope that stays open; nullptr:
/// none again. It must outlive that. Throws kFailedPrecondition inside a scope or a replica.
/// tf.distribute.experimental_set_strategy.
void set_strategy(Strategy* strategy);
/// The strategy whose cross-replica context this is; nullptr in a replica (the default replica
/// included).
Strategy* get_cross_replica_context();
/// nullptr in a cross-replica context.
ReplicaContext* get_replica_context();

/// While it lives its strategy is the current one of this thread, in cross-replica context, and
/// makes the variables. Closed by its destructor (or close()); scopes of a thread, of variable
/// creators and devices too, must be closed in the reverse order of opening, otherwise
/// kFailedPrecondition from close() ("scope nesting error"), a logged error from the destructor.
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
  /// Opens it again after close().
  void reopen();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tutti
