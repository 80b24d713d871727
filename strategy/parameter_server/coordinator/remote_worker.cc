// Tasks that were sent, and what became of them.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/remote_worker.h"

#include <algorithm>
#include <utility>

#include "strategy/parameter_server/coordinator/worker_message.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/logging.h"

namespace tutti::internal {

RemoteWorker::RemoteWorker(RemoteWorkerOptions options)
    : TaskLink(std::move(options.link)), worker_(options.worker), steps_(std::move(options.steps)) {
  begin(concat("ps-link-", worker_));
}

/// It defines other steps, or is of another job.
std::optional<Error> RemoteWorker::refusal() const {
  const MutexLock lock(mutex_);
  const bool is_refused =
      !client_ && why_gone_ && why_gone_->code() == ErrorCode::kFailedPrecondition;
  return is_refused ? why_gone_ : std::nullopt;
}

std::shared_ptr<RpcClient> RemoteWorker::client() const {
  const MutexLock lock(mutex_);
  return client_;
}

void RemoteWorker::start(WorkerTask task, Done done) {
  const std::shared_ptr<RpcClient> client = this->client();
  const std::uint64_t finished_below = task.watermark != nullptr ? task.watermark->value() : 0;
  const RunTask request{next_call_.fetch_add(1), finished_below, std::move(task)};
  std::shared_ptr<RpcReply> reply;
  try {
    if (client != nullptr) reply = client->start(encode(request));
  } catch (const Error& error) {
    return done(TaskFailure{ErrorOrigin::kInput, ErrorCode::kInvalidArgument, error.message()});
  }
  bool is_sent = false;
  {
    const MutexLock lock(mutex_);
    is_sent = reply != nullptr && client == client_;
    if (is_sent) sent_.push_back({reply, done, request.task.name()});
  }
  if (!is_sent) {
    return done(
        not_done(AttemptReport::Kind::kNotStarted, worker_, concat(name(), ": is not connected")));
  }
  reply->when_ready([this] {
    const MutexLock lock(mutex_);
    changed_.notify_all();
  });
  request.task.token->on_cancel([weak = std::weak_ptr(client), call = request.call] {
    if (const auto alive = weak.lock()) (void)alive->start(encode(CancelTask{call}));
  });
}

void RemoteWorker::recall(std::uint64_t closure, int attempt) {
  if (const auto alive = client()) (void)alive->start(encode(RecallTask{closure, attempt}));
}

void RemoteWorker::release(const PerWorkerHandle& handle) {
  if (const auto alive = client()) (void)alive->start(encode(ReleaseValue{handle}));
}

std::string RemoteWorker::doing() const {
  MutexLock lock(mutex_);
  if (client_ == nullptr) return "not connected";
  return sent_.empty() ? "nothing" : sent_.front().name;
}

void RemoteWorker::greet(RpcClient& client) {
  (void)client.call(encode(WorkerHello{steps_()}),
                    deadline_after(Clock::system().now(), durations::kJoinTimeout));
  is_alive_.store(true);
}

/// A task that was recalled is answered before older ones. Throws why there will be no answer.
std::shared_ptr<RpcReply> RemoteWorker::next_answer() {
  const MutexLock lock(mutex_);
  const auto answered = [this]() TUTTI_REQUIRES(mutex_) {
    return std::ranges::find_if(sent_, [](const Sent& each) { return each.reply->is_ready(); });
  };
  changed_.wait_until(mutex_, TimePoint::max(), [&, this]() TUTTI_REQUIRES(mutex_) {
    return loss_ || answered() != sent_.end();
  });
  const auto found = answered();
  if (found == sent_.end()) throw *loss_;
  return found->reply;
}

void RemoteWorker::work(RpcClient&) {
  if (std::exchange(was_lost_, false)) log_info(concat("coordinator: ", name(), " is here again"));
  for (;;) {
    const std::shared_ptr<RpcReply> reply = next_answer();
    TaskOutcome outcome = decode_outcome(reply->wait(TimePoint::min()));
    Done done;
    {
      const MutexLock lock(mutex_);
      const auto its = std::ranges::find(sent_, reply, &Sent::reply);
      done = std::move(its->done);
      sent_.erase(its);
    }
    done(std::move(outcome));
  }
}

void RemoteWorker::ended(std::shared_ptr<RpcClient> client, const Error& why) {
  is_alive_.store(false);
  std::deque<Sent> sent;
  {
    const MutexLock lock(mutex_);
    sent.swap(sent_);
  }
  client.reset();
  if (!is_stopped()) {
    was_lost_ = true;
    log_warning(concat("coordinator: ", name(), " is lost",
                       sent.empty() ? "" : ", and others get its closures", ": ", why.message()));
  }
  AttemptReport::Kind kind = AttemptReport::Kind::kWorkerLost;
  for (const Sent& each : sent) {
    each.done(
        not_done(std::exchange(kind, AttemptReport::Kind::kNotStarted), worker_, why.message()));
  }
}

}  // namespace tutti::internal
