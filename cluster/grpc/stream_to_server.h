// A client's stream in both directions: what every one of them needs to end.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_callback.h>

#include <utility>

#include "cluster/grpc/grpc_channel.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// gRPC's threads call On...(). Derived classes call stop() in their destructors, not on one of
/// gRPC's threads, which must not end the last channel. Threads: any, all others.
template <class Request, class Response>
class StreamToServer : public grpc::ClientBidiReactor<Request, Response> {
 public:
  void cancel() { context_.TryCancel(); }
  /// How it ended; waits until it has, or the deadline. Nothing is written any more.
  grpc::Status wait_for_end(TimePoint deadline) {
    {
      MutexLock lock(mutex_);
      is_open_ = false;
      release();
    }
    if (!done_.wait_until(deadline)) return {grpc::StatusCode::DEADLINE_EXCEEDED, "no answer"};
    MutexLock lock(mutex_);
    return status_;
  }
  /// Whether it has ended because the server itself refused it.
  bool is_refused() const { return done_.is_set() && is_of_handler(context_); }

  void OnDone(const grpc::Status& status) override {
    {
      MutexLock lock(mutex_);
      status_ = status;
      is_open_ = false;
      changed_.notify_all();
    }
    done_.set();
  }

 protected:
  /// With a hold, for writes that are started outside of On...().
  void start() {
    this->AddHold();
    this->StartCall();
  }
  /// Waits for gRPC to let go, which a cancelled stream does at once.
  void stop() {
    cancel();
    (void)wait_for_end(TimePoint::max());
  }
  /// Nothing is written from now on.
  void release() TUTTI_REQUIRES(mutex_) {
    if (!std::exchange(has_released_, true)) this->RemoveHold();
  }

  grpc::ClientContext context_;
  Event done_;
  Mutex mutex_;
  CondVar changed_;
  bool is_open_ TUTTI_GUARDED_BY(mutex_) = true;  // something may still come
  bool can_write_ TUTTI_GUARDED_BY(mutex_) = true;
  bool is_writing_ TUTTI_GUARDED_BY(mutex_) = false;
  bool has_released_ TUTTI_GUARDED_BY(mutex_) = false;
  grpc::Status status_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
