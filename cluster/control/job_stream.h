// A member's connection to the server of its job: a channel, and the stream of Join on it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "job.grpc.pb.h"
#include "tutti/cluster/grpc/grpc_channel.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// gRPC's threads call On...(). Threads: any, all others; receive() one at a time. The destructor
/// waits for gRPC to let go, which a cancelled stream does at once.
class JobStream final : public grpc::ClientBidiReactor<v1::MemberReport, v1::JobEvent> {
 public:
  explicit JobStream(const GrpcOptions& options);
  ~JobStream() override;

  v1::Job::Stub& stub() { return *stub_; }
  /// Hands it over. A broken stream swallows it.
  void send(v1::MemberReport report);
  /// What has come: waits for something, for wake(), for the end of the stream or the deadline.
  std::vector<v1::JobEvent> receive(TimePoint deadline);
  void wake();
  /// Whether something may still come.
  bool is_open();
  /// How the stream ended; waits until it has, or the deadline.
  grpc::Status wait_for_end(TimePoint deadline);
  /// Of the stream that ended: whether the server itself refused it.
  bool is_refused() const { return is_of_handler(context_); }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  void write_next() TUTTI_REQUIRES(mutex_);
  void close();
  void release() TUTTI_REQUIRES(mutex_);

  const std::unique_ptr<v1::Job::Stub> stub_;
  grpc::ClientContext context_;
  v1::JobEvent incoming_;
  Event done_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<v1::JobEvent> received_ TUTTI_GUARDED_BY(mutex_);
  std::deque<v1::MemberReport> unsent_ TUTTI_GUARDED_BY(mutex_);
  bool is_writing_ TUTTI_GUARDED_BY(mutex_) = false;
  bool can_write_ TUTTI_GUARDED_BY(mutex_) = true;
  bool is_open_ TUTTI_GUARDED_BY(mutex_) = true;
  bool is_awake_ TUTTI_GUARDED_BY(mutex_) = false;
  bool has_released_ TUTTI_GUARDED_BY(mutex_) = false;
  grpc::Status status_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
