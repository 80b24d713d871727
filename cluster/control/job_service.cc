// Reactors of gRPC's callback interface.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/control/job_service.h"

#include <atomic>
#include <deque>
#include <optional>
#include <utility>

#include "tutti/cluster/grpc/grpc_channel.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kMostUnsent = std::size_t{64} << 20;
constexpr Duration kJoinWithin = std::chrono::seconds(5);

TimePoint time_now() { return Clock::system().now(); }

/// The same status, with the mark of a handler's error.
grpc::Status marked(grpc::ServerContextBase& context, const grpc::Status& status) {
  return status.ok() ? status : to_status(context, to_error(status));
}

grpc::ServerUnaryReactor* answer_now(grpc::CallbackServerContext& context,
                                     const grpc::Status& status) {
  grpc::ServerUnaryReactor* const reactor = context.DefaultReactor();
  reactor->Finish(marked(context, status));
  return reactor;
}

/// A call that the core answers when there is something to say. gRPC owns it until OnDone().
class WaitingCall final : public grpc::ServerUnaryReactor {
 public:
  WaitingCall(ControlCore& core, grpc::CallbackServerContext& context, const void* reply)
      : core_(core), context_(context), reply_(reply) {}

  ControlCore::Answer answer() {
    return [this](const grpc::Status& status) {
      // A caller that has gone needs no mark.
      const bool is_cancelled = status.error_code() == grpc::StatusCode::CANCELLED;
      Finish(is_cancelled ? status : marked(context_, status));
    };
  }
  void OnCancel() override { core_.cancel(reply_); }
  void OnDone() override { const std::unique_ptr<WaitingCall> self(this); }

 private:
  ControlCore& core_;
  grpc::CallbackServerContext& context_;
  const void* const reply_;
};

}  // namespace

/// One member's stream. gRPC calls On...() from its threads, one at a time for reads and for
/// writes; it ends itself in OnDone(), so the core's link is a part of its own that may outlive it.
class JobService::Stream final : public grpc::ServerBidiReactor<v1::MemberReport, v1::JobEvent> {
 public:
  Stream(JobService& service, grpc::CallbackServerContext* context)
      : service_(service),
        context_(context),
        deadline_(deadline_after(time_now(), kJoinWithin)),
        link_(std::make_shared<Link>(this)) {
    StartRead(&incoming_);
  }

  void OnReadDone(bool ok) override {
    if (ok && (has_joined_ ? service_.core_.report(link_.get(), incoming_, time_now()) : join())) {
      StartRead(&incoming_);
      return;
    }
    if (has_joined_) service_.core_.closed(link_.get(), time_now());
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
  void OnCancel() override {}
  void OnDone() override {
    link_->let_go();
    const std::unique_ptr<Stream> self = service_.remove(this);
  }

  void finish(const grpc::Status& status) {
    MutexLock lock(mutex_);
    if (finish_with_) return;
    finish_with_ = status;
    if (!is_writing_) write_next();
  }
  void cancel() { context_->TryCancel(); }
  bool is_late(TimePoint now) const { return !has_joined_ && now >= deadline_; }

 private:
  class Link final : public MemberLink {
   public:
    explicit Link(Stream* stream) : stream_(stream) {}
    void send(const v1::JobEvent& event) override {
      MutexLock lock(mutex_);
      if (stream_) stream_->queue(event);
    }
    void close() override {
      MutexLock lock(mutex_);
      if (stream_) stream_->cancel();
    }
    void let_go() {
      MutexLock lock(mutex_);
      stream_ = nullptr;
    }

   private:
    Mutex mutex_;
    Stream* stream_ TUTTI_GUARDED_BY(mutex_);
  };

  bool join() {
    if (!incoming_.has_join()) return false;
    const grpc::Status status = service_.core_.join(link_, incoming_.join(), time_now());
    if (!status.ok()) {
      service_.note_refusal(status.error_message());
      finish(marked(*context_, status));
    }
    has_joined_ = status.ok();
    return has_joined_;
  }

  void queue(const v1::JobEvent& event) {
    MutexLock lock(mutex_);
    unsent_bytes_ += event.ByteSizeLong();
    if (unsent_bytes_ > kMostUnsent) return cancel();  // it does not read
    unsent_.push_back(event);
    if (!is_writing_) write_next();
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
  grpc::CallbackServerContext* const context_;
  const TimePoint deadline_;
  const std::shared_ptr<Link> link_;
  std::atomic<bool> has_joined_{false};
  v1::MemberReport incoming_;

  Mutex mutex_;
  std::deque<v1::JobEvent> unsent_ TUTTI_GUARDED_BY(mutex_);
  std::size_t unsent_bytes_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool is_writing_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_finished_ TUTTI_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> finish_with_ TUTTI_GUARDED_BY(mutex_);
};

JobService::JobService(ControlCore& core) : core_(core) {}
JobService::~JobService() = default;

grpc::ServerBidiReactor<v1::MemberReport, v1::JobEvent>* JobService::Join(
    grpc::CallbackServerContext* context) {
  // Owned by gRPC until OnDone(), which takes it out of the set that owns it.
  auto stream = std::make_unique<Stream>(*this, context);
  Stream* const pointer = stream.get();
  MutexLock lock(mutex_);
  streams_.emplace(pointer, std::move(stream));
  return pointer;
}

std::unique_ptr<JobService::Stream> JobService::remove(Stream* stream) {
  MutexLock lock(mutex_);
  auto node = streams_.extract(stream);
  return node.empty() ? nullptr : std::move(node.mapped());
}

void JobService::finish_all() {
  MutexLock lock(mutex_);
  for (const auto& [pointer, stream] : streams_) stream->finish(grpc::Status::OK);
}

void JobService::cancel_late(TimePoint now) {
  MutexLock lock(mutex_);
  for (const auto& [pointer, stream] : streams_) {
    if (stream->is_late(now)) stream->cancel();
  }
}

void JobService::note_refusal(const std::string& reason) {
  MutexLock lock(mutex_);
  refusals_.note(reason, time_now());
}

grpc::ServerUnaryReactor* JobService::Leave(grpc::CallbackServerContext* context,
                                            const v1::LeaveRequest* request, v1::LeaveReply*) {
  return answer_now(*context, core_.leave(*request, time_now()));
}

grpc::ServerUnaryReactor* JobService::ListMembers(grpc::CallbackServerContext* context,
                                                  const v1::ListMembersRequest* request,
                                                  v1::ListMembersReply* reply) {
  auto call = std::make_unique<WaitingCall>(core_, *context, reply);
  core_.list_members(*request, *reply, call->answer(), time_now());
  return call.release();
}

grpc::ServerUnaryReactor* JobService::ReportFailure(grpc::CallbackServerContext* context,
                                                    const v1::ReportFailureRequest* request,
                                                    v1::ReportFailureReply*) {
  return answer_now(*context, core_.report_failure(*request, time_now()));
}

grpc::ServerUnaryReactor* JobService::ReportDisconnection(
    grpc::CallbackServerContext* context, const v1::ReportDisconnectionRequest* request,
    v1::ReportDisconnectionReply*) {
  return answer_now(*context, core_.report_disconnection(*request, time_now()));
}

grpc::ServerUnaryReactor* JobService::RequestStop(grpc::CallbackServerContext* context,
                                                  const v1::RequestStopRequest* request,
                                                  v1::RequestStopReply*) {
  return answer_now(*context, core_.request_stop(*request, time_now()));
}

grpc::ServerUnaryReactor* JobService::Get(grpc::CallbackServerContext* context,
                                          const v1::GetRequest* request, v1::GetReply* reply) {
  auto call = std::make_unique<WaitingCall>(core_, *context, reply);
  core_.get(*request, *reply, call->answer(), time_now());
  return call.release();
}

grpc::ServerUnaryReactor* JobService::Put(grpc::CallbackServerContext* context,
                                          const v1::PutRequest* request, v1::PutReply*) {
  return answer_now(*context, core_.put(*request, time_now()));
}

grpc::ServerUnaryReactor* JobService::Delete(grpc::CallbackServerContext* context,
                                             const v1::DeleteRequest* request,
                                             v1::DeleteReply* reply) {
  return answer_now(*context, core_.remove(*request, *reply, time_now()));
}

grpc::ServerUnaryReactor* JobService::CompareAndSet(grpc::CallbackServerContext* context,
                                                    const v1::CompareAndSetRequest* request,
                                                    v1::CompareAndSetReply* reply) {
  return answer_now(*context, core_.compare_and_set(*request, *reply, time_now()));
}

}  // namespace tutti::internal
