// A result behind a lock.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/coordinator/remote_value.h"

#include <utility>

#include "tutti/core/sync.h"

namespace tutti::internal {

struct RemoteResult::Impl {
  mutable Mutex mutex;
  mutable CondVar condition;
  RemoteValueState state TUTTI_GUARDED_BY(mutex) = RemoteValueState::kNotReady;
  Nest value TUTTI_GUARDED_BY(mutex);
  std::exception_ptr error TUTTI_GUARDED_BY(mutex);
};

RemoteResult::RemoteResult() : impl_(std::make_unique<Impl>()) {}
RemoteResult::~RemoteResult() = default;

void RemoteResult::set(Nest value) {
  MutexLock lock(impl_->mutex);
  impl_->state = RemoteValueState::kReady;
  impl_->value = std::move(value);
  impl_->error = nullptr;
  impl_->condition.notify_all();
}

void RemoteResult::abort(std::exception_ptr error) {
  MutexLock lock(impl_->mutex);
  impl_->state = RemoteValueState::kAborted;
  impl_->value = Nest();
  impl_->error = std::move(error);
  impl_->condition.notify_all();
}

void RemoteResult::renew() {
  MutexLock lock(impl_->mutex);
  impl_->state = RemoteValueState::kNotReady;
  impl_->error = nullptr;
}

RemoteValueState RemoteResult::state() const {
  MutexLock lock(impl_->mutex);
  return impl_->state;
}

Nest RemoteResult::get(TimePoint deadline) const {
  MutexLock lock(impl_->mutex);
  const Impl& impl = *impl_;
  const bool in_time = impl_->condition.wait_until(
      impl_->mutex, deadline,
      [&impl]() TUTTI_REQUIRES(impl.mutex) { return impl.state != RemoteValueState::kNotReady; });
  if (!in_time) {
    fail(ErrorCode::kDeadlineExceeded,
         "fetch: the closure has not ended at the deadline; try a later one");
  }
  if (impl_->error) std::rethrow_exception(impl_->error);
  return impl_->value;
}

}  // namespace tutti::internal
