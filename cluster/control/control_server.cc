// A job's server: the service, what it knows, and the thread that looks for the silent.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/control/control_server.h"

#include <atomic>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "job.grpc.pb.h"
#include "tutti/cluster/control/control_core.h"
#include "tutti/cluster/grpc/grpc_server.h"
#include "tutti/cluster/net/socket.h"
#include "tutti/cluster/net/strangers.h"
#include "tutti/core/error.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kMostUnsent = std::size_t{64} << 20;

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

/// The service Job on gRPC's threads: hands what comes to the core, and what the core says to the
/// streams. Threads: any.
class JobService final : public v1::Job::CallbackService {
 public:
  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;

  explicit JobService(ControlCore& core) : core_(core) {}

  grpc::ServerBidiReactor<v1::MemberReport, v1::JobEvent>* Join(Context* context) override {
    // Owned by gRPC until OnDone(), which takes it out of the set that owns it.
    auto stream = std::make_unique<Stream>(*this, context);
    Stream* const pointer = stream.get();
    MutexLock lock(mutex_);
    streams_.emplace(pointer, std::move(stream));
    return pointer;
  }
  Reactor* Leave(Context* context, const v1::LeaveRequest* request, v1::LeaveReply*) override {
    return answer_now(*context, core_.leave(*request, time_now()));
  }
  Reactor* ReportFailure(Context* context, const v1::ReportFailureRequest* request,
                         v1::ReportFailureReply*) override {
    return answer_now(*context, core_.report_failure(*request, time_now()));
  }
  Reactor* ReportDisconnection(Context* context, const v1::ReportDisconnectionRequest* request,
                               v1::ReportDisconnectionReply*) override {
    return answer_now(*context, core_.report_disconnection(*request, time_now()));
  }
  Reactor* RequestStop(Context* context, const v1::RequestStopRequest* request,
                       v1::RequestStopReply*) override {
    return answer_now(*context, core_.request_stop(*request, time_now()));
  }
  Reactor* Put(Context* context, const v1::PutRequest* request, v1::PutReply*) override {
    return answer_now(*context, core_.put(*request, time_now()));
  }
  Reactor* Delete(Context* context, const v1::DeleteRequest* request,
                  v1::DeleteReply* reply) override {
    return answer_now(*context, core_.remove(*request, *reply, time_now()));
  }
  Reactor* CompareAndSet(Context* context, const v1::CompareAndSetRequest* request,
                         v1::CompareAndSetReply* reply) override {
    return answer_now(*context, core_.compare_and_set(*request, *reply, time_now()));
  }
  Reactor* Get(Context* context, const v1::GetRequest* request, v1::GetReply* reply) override {
    auto call = std::make_unique<WaitingCall>(core_, *context, reply);
    core_.get(*request, *reply, call->answer(), time_now());
    return call.release();
  }
  Reactor* ListMembers(Context* context, const v1::ListMembersRequest* request,
                       v1::ListMembersReply* reply) override {
    auto call = std::make_unique<WaitingCall>(core_, *context, reply);
    core_.list_members(*request, *reply, call->answer(), time_now());
    return call.release();
  }

  /// Ends the streams on which nothing was said within the time for it.
  void cancel_late(TimePoint now) {
    MutexLock lock(mutex_);
    for (const auto& [pointer, stream] : streams_) {
      if (stream->is_late(now)) stream->cancel();
    }
  }
  /// Each stream ends when what it has to send is sent.
  void finish_all() {
    MutexLock lock(mutex_);
    for (const auto& [pointer, stream] : streams_) stream->finish(grpc::Status::OK);
  }

 private:
  /// One member's stream. gRPC calls On...() from its threads, one at a time for reads and for
  /// writes; it ends itself in OnDone(), so the core's link is a part of its own that may outlive
  /// it.
  class Stream final : public grpc::ServerBidiReactor<v1::MemberReport, v1::JobEvent> {
   public:
    Stream(JobService& service, grpc::CallbackServerContext* context)
        : service_(service),
          context_(context),
          deadline_(deadline_after(time_now(), durations::kOpensWithin)),
          link_(std::make_shared<Link>(this)) {
      StartRead(&incoming_);
    }

    void OnReadDone(bool ok) override {
      if (ok &&
          (has_joined_ ? service_.core_.report(link_.get(), incoming_, time_now()) : join())) {
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

  void note_refusal(const std::string& reason) {
    MutexLock lock(mutex_);
    refusals_.note(reason, time_now());
  }
  std::unique_ptr<Stream> remove(Stream* stream) {
    MutexLock lock(mutex_);
    auto node = streams_.extract(stream);
    return node.empty() ? nullptr : std::move(node.mapped());
  }

  ControlCore& core_;
  Mutex mutex_;
  std::map<Stream*, std::unique_ptr<Stream>> streams_ TUTTI_GUARDED_BY(mutex_);
  RefusalLog refusals_ TUTTI_GUARDED_BY(mutex_){"control"};
};

}  // namespace
}  // namespace tutti::internal

namespace tutti {

bool control_has_grpc() { return true; }

namespace {

void check_durations(const HealthOptions& health) {
  const bool in_order = health.heartbeat_every > Duration::zero() &&
                        health.silent_after >= 2 * health.heartbeat_every &&
                        health.unreachable_after >= health.silent_after &&
                        health.warn_stuck_after > Duration::zero() &&
                        health.abort_stuck_after >= health.warn_stuck_after;
  if (in_order) return;
  fail(ErrorCode::kInvalidArgument,
       "ControlServer: expected heartbeat_every above 0, silent_after at least twice that, "
       "unreachable_after not below silent_after, and abort_stuck_after not below "
       "warn_stuck_after");
}

/// Asks the system about processes of this machine.
internal::ProcessState probe_process(const internal::JoiningProcess& joined) {
  if (joined.machine != internal::this_process().machine) return {};
  return internal::look_at_process(joined.who.pid, joined.start_time);
}

class GrpcControlServer final : public ControlServer {
 public:
  GrpcControlServer(const ControlServerOptions& options, const internal::Endpoint& endpoint)
      : linger_(options.linger),
        core_(options, probe_process),
        service_(core_),
        server_({endpoint, options.secret, options.tls}, {&service_}) {
    ticker_ = Executor::system().start("control-server", [this] { tick(); });
  }

  ~GrpcControlServer() override {
    core_.wait_until_all_have_left(deadline_after(Clock::system().now(), linger_));
    core_.say_server_ends();
    stop_.set();
    ticker_->join();
    service_.finish_all();
    server_.shutdown(durations::kLinger);
  }

  std::string target() const override { return concat("grpc://", server_.endpoint().to_string()); }
  std::vector<Member> members() const override { return core_.members(); }
  std::vector<Verdict> verdicts_after(std::uint64_t number) const override {
    return core_.verdicts_after(number);
  }
  std::vector<Member> missing() const override { return core_.missing(); }

 private:
  void tick() {
    while (!stop_.wait_until(deadline_after(Clock::system().now(), core_.poll_after()))) {
      core_.tick(Clock::system().now());
      service_.cancel_late(Clock::system().now());
    }
  }

  const Duration linger_;
  internal::ControlCore core_;
  internal::JobService service_;
  internal::GrpcServer server_;
  Event stop_;
  std::unique_ptr<Thread> ticker_;
};

}  // namespace

std::unique_ptr<ControlServer> ControlServer::start(const ControlServerOptions& options) {
  check_durations(options.health);
  const internal::Endpoint endpoint =
      internal::checked_listen_address("ControlServer", options.address,
                                       {.has_secret = options.secret.is_set(),
                                        .has_tls = options.tls.is_set(),
                                        .allow_insecure_network = options.allow_insecure_network,
                                        .allow_any_address = options.allow_any_address});
  return std::make_unique<GrpcControlServer>(options, endpoint);
}

}  // namespace tutti
