// The streams of Join: one per member.
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <deque>
#include <utility>

#include "cluster/control/job_service.h"
#include "cluster/grpc/grpc_channel.h"
#include "tutti/cluster/net/job_durations.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kMostUnsent = std::size_t{64} << 20;

}  // namespace

/// gRPC calls On...() from its threads, one at a time for reads and for writes; links may know it
/// for longer.
class JobService::Stream final : public grpc::ServerBidiReactor<v1::MemberReport, v1::JobEvent>,
                                 public MemberLink,
                                 public std::enable_shared_from_this<Stream> {
 public:
  Stream(JobService& service, Context& context)
      : service_(service),
        context_(context),
        deadline_(deadline_after(Clock::system().now(), durations::kUnreachableAfter)) {}
  void begin() { StartRead(&incoming_); }

  void OnReadDone(bool ok) override {
    if (ok && (has_joined_ ? service_.report(this, incoming_) : join())) {
      StartRead(&incoming_);
      return;
    }
    if (has_joined_) service_.closed(this);
    // The other side has gone, in whatever way, or makes no sense.
    finish(ok ? grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "expected Join, then reports")
              : grpc::Status::OK);
  }
  void OnWriteDone(bool ok) override {
    MutexLock lock(mutex_);
    unsent_bytes_ -= unsent_.front().ByteSizeLong();
    unsent_.pop_front();
    if (!ok) unsent_.clear();
    write_next();
  }
  void OnDone() override {
    const auto self = shared_from_this();
    {
      MutexLock lock(mutex_);
      is_done_ = true;
    }
    MutexLock lock(service_.mutex_);
    service_.streams_.erase(self);
  }

  void send(const v1::JobEvent& event) override {
    MutexLock lock(mutex_);
    if (is_done_) return;
    unsent_bytes_ += event.ByteSizeLong();
    if (unsent_bytes_ > kMostUnsent) return context_.TryCancel();  // it does not read
    unsent_.push_back(event);
    if (!is_writing_) write_next();
  }
  void close() override {
    MutexLock lock(mutex_);
    if (!is_done_) context_.TryCancel();
  }
  /// When what it has to send is sent.
  void finish(const grpc::Status& status) {
    MutexLock lock(mutex_);
    if (finish_with_) return;
    finish_with_ = status;
    if (!is_writing_) write_next();
  }
  bool is_late(TimePoint now) const { return !has_joined_ && now >= deadline_; }

 private:
  bool join() {
    if (!incoming_.has_join()) return false;
    const grpc::Status status = service_.join(shared_from_this(), incoming_.join());
    if (!status.ok()) finish(to_status(context_, to_error(status)));
    has_joined_ = status.ok();
    return has_joined_;
  }

  void write_next() TUTTI_REQUIRES(mutex_) {
    if (is_finished_) return;
    is_writing_ = !unsent_.empty();
    if (is_writing_) {
      StartWrite(&unsent_.front());
    } else if (finish_with_) {
      is_finished_ = true;
      Finish(*finish_with_);
    }
  }

  JobService& service_;
  Context& context_;
  const TimePoint deadline_;
  std::atomic<bool> has_joined_{false};
  v1::MemberReport incoming_;

  Mutex mutex_;
  std::deque<v1::JobEvent> unsent_ TUTTI_GUARDED_BY(mutex_);
  std::size_t unsent_bytes_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool is_writing_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_finished_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_done_ TUTTI_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> finish_with_ TUTTI_GUARDED_BY(mutex_);
};

grpc::ServerBidiReactor<v1::MemberReport, v1::JobEvent>* JobService::Join(Context* context) {
  const auto stream = std::make_shared<Stream>(*this, *context);
  {
    MutexLock lock(mutex_);
    streams_.insert(stream);
  }
  stream->begin();
  return stream.get();
}

void JobService::cancel_late_streams(TimePoint now) {
  for (const auto& stream : streams_) {
    if (stream->is_late(now)) stream->close();
  }
}

void JobService::say_server_ends() {
  MutexLock lock(mutex_);
  v1::JobEvent event;
  event.mutable_server_ends();
  broadcast(event);
  for (const auto& stream : streams_) stream->finish(grpc::Status::OK);
}

}  // namespace tutti::internal
