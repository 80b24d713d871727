// The result of a scheduled closure, once there is one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <memory>
#include <utility>

#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/coordinator/nest_conversion.h"

namespace tutti {

enum class RemoteValueState { kNotReady, kReady, kAborted };

namespace internal {

/// What a RemoteValue looks at. Threads: any.
class RemoteResult {
 public:
  void set(Nest value) { end(RemoteValueState::kReady, std::move(value), nullptr); }
  /// fetch() throws it.
  void abort(std::exception_ptr error) {
    end(RemoteValueState::kAborted, Nest(), std::move(error));
  }
  RemoteValueState state() const;
  Nest get(TimePoint deadline) const;

 private:
  void end(RemoteValueState state, Nest value, std::exception_ptr error);

  mutable Mutex mutex_;
  mutable CondVar condition_;
  RemoteValueState state_ TUTTI_GUARDED_BY(mutex_) = RemoteValueState::kNotReady;
  Nest value_ TUTTI_GUARDED_BY(mutex_);
  std::exception_ptr error_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace internal

/// What schedule() returns at once. A handle: copies share the result. Threads: any.
/// tf.distribute.experimental.coordinator.RemoteValue.
class RemoteValue {
 public:
  explicit RemoteValue(std::shared_ptr<internal::RemoteResult> result)
      : result_(std::move(result)) {}

  RemoteValueState state() const { return result_->state(); }
  /// Waits for the result, in this process. Throws the closure's own error (ClosureError);
  /// kCancelled when it was cancelled: schedule it again; kDeadlineExceeded.
  Nest get(TimePoint deadline = TimePoint::max()) const { return result_->get(deadline); }
  /// The same as a C++ value. Throws kInvalidArgument too, when the result is of another kind.
  template <class T = Tensor>
  T fetch(TimePoint deadline = TimePoint::max()) const {
    return internal::from_nest<T>(get(deadline), "fetch");
  }

 private:
  std::shared_ptr<internal::RemoteResult> result_;
};

}  // namespace tutti
