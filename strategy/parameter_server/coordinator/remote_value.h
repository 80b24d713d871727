// The result of a scheduled closure, once there is one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <memory>

#include "tutti/core/clock.h"
#include "tutti/strategy/parameter_server/coordinator/nest_conversion.h"

namespace tutti {

enum class RemoteValueState { kNotReady, kReady, kAborted };

namespace internal {

/// What a RemoteValue looks at. Threads: any.
class RemoteResult {
 public:
  RemoteResult();
  ~RemoteResult();
  void set(Nest value);
  /// fetch() throws it.
  void abort(std::exception_ptr error);
  /// kAborted -> kNotReady: a resource is being made again.
  void renew();
  RemoteValueState state() const;
  Nest get(TimePoint deadline) const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
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
