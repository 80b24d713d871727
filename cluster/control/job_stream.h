// A member's connection to the server of its job: a channel, and the stream of Join on it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "job.grpc.pb.h"
#include "tutti/cluster/grpc/stream_to_server.h"

namespace tutti::internal {

/// Threads: as StreamToServer; receive() one at a time.
class JobStream final : public StreamToServer<v1::MemberReport, v1::JobEvent> {
 public:
  explicit JobStream(const GrpcOptions& options);
  ~JobStream() override { stop(); }

  v1::Job::Stub& stub() { return *stub_; }
  /// Hands it over. A broken stream swallows it.
  void send(v1::MemberReport report);
  /// What has come: waits for something, for wake(), for the end of the stream or the deadline.
  std::vector<v1::JobEvent> receive(TimePoint deadline);
  void wake();
  /// Whether something may still come.
  bool is_open();

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;

 private:
  void write_next() TUTTI_REQUIRES(mutex_);

  const std::unique_ptr<v1::Job::Stub> stub_;
  v1::JobEvent incoming_;
  std::vector<v1::JobEvent> received_ TUTTI_GUARDED_BY(mutex_);
  std::deque<v1::MemberReport> unsent_ TUTTI_GUARDED_BY(mutex_);
  bool is_awake_ TUTTI_GUARDED_BY(mutex_) = false;
};

}  // namespace tutti::internal
