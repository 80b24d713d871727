// One thread connects, greets, waits for answers, and connects again.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/remote_worker.h"

#include <algorithm>
#include <utility>

#include "strategy/parameter_server/coordinator/worker_message.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

Error stopped() { return Error(ErrorCode::kCancelled, "the coordinator was stopped"); }

}  // namespace

RemoteWorker::RemoteWorker(RemoteWorkerOptions options)
    : options_(std::move(options)), name_(concat("worker ", options_.worker)) {
  if (options_.when_lost) {
    subscription_ = options_.when_lost(
        [this](std::uint64_t incarnation, const Error& error) { give_up(incarnation, error); });
  }
  thread_ = Executor::system().start(concat("ps-link-", options_.worker), [this] { run(); });
}

RemoteWorker::~RemoteWorker() {
  subscription_.reset();
  stop_.set();
  give_up(~std::uint64_t{0}, stopped());
  thread_->join();
}

void RemoteWorker::watch(std::function<void()> on_change) {
  const MutexLock lock(mutex_);
  on_change_ = std::move(on_change);
}

void RemoteWorker::report_change() {
  std::function<void()> on_change;
  {
    const MutexLock lock(mutex_);
    on_change = on_change_;
  }
  if (on_change) on_change();
}

/// The job found out that the worker's incarnations up to this one are gone.
void RemoteWorker::give_up(std::uint64_t incarnation, const Error& error) {
  std::shared_ptr<RpcClient> client;
  {
    const MutexLock lock(mutex_);
    client = client_ ? client_ : greeted_;
    if (client == nullptr || client->server_incarnation() > incarnation) return;  // a former one
    loss_ = error;
    changed_.notify_all();
  }
  client->fail_all(error);
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
    if (client != nullptr && !client->why_broken()) reply = client->start(encode(request));
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
    return done(not_done(AttemptReport::Kind::kNotStarted, options_.worker,
                         concat(name_, ": is not connected")));
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

void RemoteWorker::run() {
  while (!stop_.is_set()) {
    if (std::shared_ptr<RpcClient> client = open()) {
      report_change();
      work(std::move(client));
      report_change();
    } else {
      stop_.wait_until(deadline_after(Clock::system().now(), durations::kTryAgain));
    }
  }
}

/// The destructor, and the job, end the greeting by the client that is greeted.
std::shared_ptr<RpcClient> RemoteWorker::open() {
  std::shared_ptr<RpcClient> client;
  try {
    client = options_.connect();
    {
      const MutexLock lock(mutex_);
      if (stop_.is_set()) throw stopped();
      greeted_ = client;
      loss_.reset();
    }
    (void)client->call(encode(WorkerHello{options_.steps()}),
                       deadline_after(Clock::system().now(), durations::kJoinTimeout));
    is_alive_.store(true);
    const MutexLock lock(mutex_);
    client_ = std::move(greeted_);
  } catch (const Error& error) {
    {
      const MutexLock lock(mutex_);
      greeted_.reset();
      why_gone_ = error;
    }
    complain(error);
    return nullptr;
  }
  last_complaint_.clear();
  complain_at_ = {};
  return client;
}

/// A task that was recalled is answered before older ones. Throws why there will be no answer.
std::shared_ptr<RpcReply> RemoteWorker::next_answer(const RpcClient& client) {
  const MutexLock lock(mutex_);
  const auto answered = [this]() TUTTI_REQUIRES(mutex_) {
    return std::ranges::find_if(sent_, [](const Sent& each) { return each.reply->is_ready(); });
  };
  const auto is_over = [&, this]()
                           TUTTI_REQUIRES(mutex_) { return loss_ || answered() != sent_.end(); };
  // Without a task under way no answer reports that the connection broke.
  while (!changed_.wait_for(mutex_, durations::kHeartbeatEvery, is_over)) {
    if (const auto why = client.why_broken(); why && sent_.empty()) {
      fail(ErrorCode::kUnavailable, name_, ": the connection broke: ", *why);
    }
  }
  const auto found = answered();
  if (found == sent_.end()) throw *loss_;
  return found->reply;
}

void RemoteWorker::deliver_answers(const RpcClient& client) {
  for (;;) {
    const std::shared_ptr<RpcReply> reply = next_answer(client);
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

/// Until the worker is lost, or this object ends.
void RemoteWorker::work(std::shared_ptr<RpcClient> client) {
  if (std::exchange(was_lost_, false)) log_info(concat("coordinator: ", name_, " is here again"));
  Error why = stopped();
  try {
    deliver_answers(*client);
  } catch (const Error& error) {
    why = error;
  }
  is_alive_.store(false);
  std::deque<Sent> sent;
  {
    const MutexLock lock(mutex_);
    client_.reset();
    why_gone_ = why;
    sent.swap(sent_);
  }
  client.reset();
  if (!stop_.is_set()) {
    was_lost_ = true;
    log_warning(concat("coordinator: ", name_, " is lost",
                       sent.empty() ? "" : ", and others get its closures", ": ", why.message()));
  }
  AttemptReport::Kind kind = AttemptReport::Kind::kWorkerLost;
  for (const Sent& each : sent) {
    each.done(not_done(std::exchange(kind, AttemptReport::Kind::kNotStarted), options_.worker,
                       why.message()));
  }
}

void RemoteWorker::complain(const Error& error) {
  if (stop_.is_set()) return;
  const bool is_absent =
      error.code() == ErrorCode::kDeadlineExceeded || error.code() == ErrorCode::kUnavailable;
  const TimePoint now = Clock::system().now();
  // A worker that is simply not there is no news.
  const TimePoint again_at = deadline_after(now, 6 * durations::kSayAgainEvery);
  if (complain_at_ == TimePoint{}) complain_at_ = again_at;
  const bool is_news = std::exchange(last_complaint_, error.message()) != error.message();
  if (is_absent ? now < complain_at_ : !is_news) return;
  complain_at_ = again_at;
  log_warning(concat("coordinator: no connection to ", name_, ": ", error.message()));
}

}  // namespace tutti::internal
