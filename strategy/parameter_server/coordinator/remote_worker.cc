// Tasks that were sent, and what became of them.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/coordinator/remote_worker.h"

#include <algorithm>
#include <utility>

#include "tutti/core/logging.h"
#include "tutti/strategy/parameter_server/coordinator/worker_message.h"
#include "tutti/strategy/parameter_server/protocol/durations.h"

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

void RemoteWorker::start(WorkerTask task, Done done) {
  const CoordinatorNews::Said said =
      task.news != nullptr ? task.news->said() : CoordinatorNews::Said();
  RunTask request{0, said.term == task.term ? said.finished_below : 0, std::move(task)};
  const WorkerTask& own = request.task;
  std::string refused;
  std::shared_ptr<RpcClient> client;
  try {
    MutexLock lock(mutex_);
    if (client_ != nullptr) {
      request.call = next_call_++;
      // (With the lock: answers come in the order of the calls.)
      sent_.push_back({client_->start(encode(request)), done, own.name(), own.number, own.attempt});
      client = client_;
      changed_.notify_all();
    }
  } catch (const Error& error) {
    refused = error.message();
  }
  if (!refused.empty()) {
    return done(TaskFailure{ErrorOrigin::kInput, ErrorCode::kInvalidArgument, refused});
  }
  if (client == nullptr) {
    return done(
        not_done(AttemptReport::Kind::kNotStarted, worker_, concat(name(), ": is not connected")));
  }
  own.token->on_cancel([weak = std::weak_ptr(client), call = request.call] {
    if (const auto alive = weak.lock()) (void)alive->start(encode(CancelTask{call}));
  });
}

bool RemoteWorker::recall(std::uint64_t number, int attempt) {
  std::shared_ptr<RpcClient> client;
  {
    MutexLock lock(mutex_);
    client = client_;
  }
  if (client == nullptr) return false;
  try {
    const Packet answer = client->call(encode(RecallTask{number, attempt}),
                                       deadline_after(Clock::system().now(), kOneTry));
    if (!std::holds_alternative<Nest>(decode_outcome(answer)))
      return false;  // it has begun, or ended
  } catch (const Error&) {
    return false;  // lost, or slow: its own answer will say what became of it
  }
  Done done;
  {
    MutexLock lock(mutex_);
    const auto found = std::ranges::find_if(
        sent_, [&](const Sent& each) { return each.number == number && each.attempt == attempt; });
    if (found == sent_.end()) return false;
    done = std::move(found->done);
    // Its own answer is the same report. The thread may wait for it already.
    found->done = [](const TaskOutcome&) {};
  }
  done(not_done(AttemptReport::Kind::kNotStarted, worker_,
                concat(name(), ": gave it to another one")));
  return true;
}

void RemoteWorker::release(const PerWorkerHandle& handle) {
  std::shared_ptr<RpcClient> client;
  {
    MutexLock lock(mutex_);
    client = client_;
  }
  if (client != nullptr) (void)client->start(encode(ReleaseValue{handle}));
}

std::string RemoteWorker::doing() const {
  MutexLock lock(mutex_);
  if (client_ == nullptr) return "not connected";
  return sent_.empty() ? "nothing" : sent_.front().name;
}

void RemoteWorker::greet(RpcClient& client) {
  (void)client.call(encode(WorkerHello{steps_()}),
                    deadline_after(Clock::system().now(), kDurableServerPatience));
  is_alive_.store(true);
}

/// Nothing to wait for: throws why there will be nothing.
std::shared_ptr<RpcReply> RemoteWorker::next_answer() {
  const MutexLock lock(mutex_);
  changed_.wait_until(mutex_, TimePoint::max(),
                      [this]() TUTTI_REQUIRES(mutex_) { return loss_ || !sent_.empty(); });
  if (sent_.empty()) throw *loss_;
  return sent_.front().reply;
}

void RemoteWorker::work(RpcClient&) {
  if (std::exchange(was_lost_, false)) log_info(concat("coordinator: ", name(), " is here again"));
  for (;;) {
    TaskOutcome outcome = decode_outcome(next_answer()->wait(TimePoint::max()));
    Done done;
    {
      const MutexLock lock(mutex_);
      done = std::move(sent_.front().done);
      sent_.pop_front();
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
