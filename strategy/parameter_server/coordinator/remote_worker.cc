// One thread connects, waits for answers, and connects again.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/coordinator/remote_worker.h"

#include <algorithm>
#include <utility>

#include "tutti/core/logging.h"
#include "tutti/strategy/parameter_server/coordinator/worker_message.h"
#include "tutti/strategy/parameter_server/protocol/durations.h"

namespace tutti::internal {

RemoteWorker::RemoteWorker(RemoteWorkerOptions options) : options_(std::move(options)) {
  if (options_.when_lost) {
    subscription_ = options_.when_lost(
        [this](std::uint64_t incarnation, const Error& error) { give_up(incarnation, error); });
  }
  thread_ = Executor::system().start(concat("ps-link-", options_.worker), [this] { run(); });
}

RemoteWorker::~RemoteWorker() {
  subscription_.reset();
  stop_.set();
  give_up(~std::uint64_t{0}, Error(ErrorCode::kCancelled, "the coordinator was stopped"));
  {
    MutexLock lock(mutex_);
    condition_.notify_all();
  }
  thread_->join();
}

void RemoteWorker::give_up(std::uint64_t incarnation, const Error& error) {
  std::shared_ptr<RpcClient> client;
  {
    MutexLock lock(mutex_);
    client = client_ ? client_ : greeted_;
    const bool is_that_life = client != nullptr && client->server_incarnation() <= incarnation;
    if (!is_that_life) return;  // news of a former one
    loss_ = error;
    condition_.notify_all();
  }
  client->fail_all(error);
}

std::optional<Error> RemoteWorker::refusal() const {
  MutexLock lock(mutex_);
  return refusal_;
}

TaskOutcome RemoteWorker::lost(AttemptReport::Kind kind, const std::string& text) const {
  return AttemptReport{kind, options_.worker, ErrorOrigin::kWorker, ErrorCode::kUnavailable, text};
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
    if (is_alive()) {
      request.call = next_call_++;
      // (With the lock: answers come in the order of the calls.)
      const auto name = own.number == WorkerTask::kNoClosure
                            ? concat("step ", own.step)
                            : concat("closure ", own.number, " (", own.step, ")");
      sent_.push_back({client_->start(encode(request)), done, name, own.number, own.attempt});
      client = client_;
      condition_.notify_all();
    }
  } catch (const Error& error) {
    refused = error.message();
  }
  if (!refused.empty()) {
    return done(TaskFailure{ErrorOrigin::kInput, ErrorCode::kInvalidArgument, refused});
  }
  if (client == nullptr) {
    return done(lost(AttemptReport::Kind::kNotStarted,
                     concat("worker ", options_.worker, ": is not connected")));
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
                                       deadline_after(Clock::system().now(), kRecallPatience));
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
  done(lost(AttemptReport::Kind::kNotStarted,
            concat("worker ", options_.worker, ": gave it to another one")));
  return true;
}

void RemoteWorker::watch(std::function<void()> on_change) {
  MutexLock lock(mutex_);
  on_change_ = std::move(on_change);
}

void RemoteWorker::release(const PerWorkerHandle& handle) {
  std::shared_ptr<RpcClient> client;
  {
    MutexLock lock(mutex_);
    if (is_alive()) client = client_;
  }
  if (client != nullptr) (void)client->start(encode(ReleaseValue{handle}));
}

std::string RemoteWorker::doing() const {
  MutexLock lock(mutex_);
  if (!is_alive()) return "not connected";
  return sent_.empty() ? "nothing" : sent_.front().name;
}

void RemoteWorker::tell_change() {
  std::function<void()> on_change;
  {
    MutexLock lock(mutex_);
    on_change = on_change_;
  }
  if (on_change) on_change();
}

void RemoteWorker::run() {
  while (!stop_.is_set()) {
    if (open()) {
      tell_change();
      take_answers();
      tell_change();
    }
    stop_.wait_until(deadline_after(Clock::system().now(), options_.between_tries));
  }
}

void RemoteWorker::greet(RpcClient& client) {
  (void)client.call(encode(WorkerHello{options_.steps()}),
                    deadline_after(Clock::system().now(), options_.hello_timeout));
}

/// Its destructor, and the job, end the greeting by it.
void RemoteWorker::begin_greeting(std::shared_ptr<RpcClient> client) {
  MutexLock lock(mutex_);
  if (stop_.is_set()) fail(ErrorCode::kCancelled, "the coordinator was stopped");
  greeted_ = std::move(client);
  loss_.reset();
}

bool RemoteWorker::open() {
  std::shared_ptr<RpcClient> client;  // destroyed without the lock
  try {
    client = options_.connect();
    begin_greeting(client);
    greet(*client);
    MutexLock lock(mutex_);
    client_ = std::move(greeted_);
    refusal_.reset();
    is_alive_.store(true);
  } catch (const Error& error) {
    {
      MutexLock lock(mutex_);
      greeted_.reset();
    }
    complain(error);
    return false;
  }
  last_complaint_.clear();
  if (std::exchange(was_lost_, false)) {
    log_info(concat("coordinator: worker ", options_.worker, " is here again"));
  }
  return true;
}

void RemoteWorker::complain(const Error& error) {
  if (stop_.is_set()) return;
  const bool is_absent = error.code() == ErrorCode::kDeadlineExceeded;
  {
    MutexLock lock(mutex_);
    refusal_.reset();
    if (error.code() == ErrorCode::kFailedPrecondition) refusal_ = error;
  }
  const TimePoint now = Clock::system().now();
  if (complain_at_ == TimePoint{}) complain_at_ = deadline_after(now, kComplainEvery);
  const bool is_news = std::exchange(last_complaint_, error.message()) != error.message();
  if (is_absent ? now < complain_at_ : !is_news) return;
  complain_at_ = deadline_after(now, kComplainEvery);
  log_warning(
      concat("coordinator: no connection to worker ", options_.worker, ": ", error.message()));
}

void RemoteWorker::take_answers() {
  for (;;) {
    std::shared_ptr<RpcReply> reply;
    std::optional<Error> loss;
    {
      MutexLock lock(mutex_);
      condition_.wait_until(mutex_, TimePoint::max(), [this]() TUTTI_REQUIRES(mutex_) {
        return stop_.is_set() || loss_ || !sent_.empty();
      });
      if (!sent_.empty()) {
        reply = sent_.front().reply;
      } else if (loss_) {
        loss = loss_;
      }
    }
    if (reply == nullptr) {
      return end_life(loss.value_or(Error(ErrorCode::kCancelled, "the coordinator was stopped")));
    }
    try {
      TaskOutcome outcome = decode_outcome(reply->wait(TimePoint::max()));
      Done done;
      {
        MutexLock lock(mutex_);
        done = std::move(sent_.front().done);
        sent_.pop_front();
      }
      done(std::move(outcome));
    } catch (const Error& error) {
      return end_life(error);
    }
  }
}

void RemoteWorker::end_life(const Error& error) {
  std::deque<Sent> sent;
  std::shared_ptr<RpcClient> client;
  {
    MutexLock lock(mutex_);
    is_alive_.store(false);
    sent.swap(sent_);
    client.swap(client_);
  }
  client.reset();
  if (!stop_.is_set()) {
    was_lost_ = true;
    complain_at_ = {};
    log_warning(concat("coordinator: worker ", options_.worker, " is lost",
                       sent.empty() ? "" : ", and others get its closures", ": ", error.message()));
  }
  AttemptReport::Kind kind = AttemptReport::Kind::kWorkerLost;
  for (const Sent& each : sent) {
    each.done(lost(std::exchange(kind, AttemptReport::Kind::kNotStarted), error.message()));
  }
}

}  // namespace tutti::internal
