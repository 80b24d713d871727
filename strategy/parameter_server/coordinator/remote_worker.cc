// Implements RemoteWorker: sends tasks as calls; its thread connects, sends a hello, and
// reconnects.
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

WorkerRequest request_of(std::uint64_t call, const WorkerTask& task) {
  WorkerRequest request{.message = {}, .arguments = task.arguments};
  v1::WorkerRequest::RunTask& run = *request.message.mutable_run();
  run.set_task(call), run.set_closure(task.closure), run.set_attempt(task.attempt);
  run.set_run(task.run), run.set_step(task.step);
  if (task.watermark != nullptr) run.set_finished_below(task.watermark->value());
  return request;
}

}  // namespace

RemoteWorker::RemoteWorker(RemoteWorkerOptions options)
    : options_(std::move(options)), name_(concat("worker ", options_.worker)) {
  if (options_.when_lost) {
    subscription_ = options_.when_lost(
        [this](std::uint64_t incarnation, const Error& error) { give_up(incarnation, error); });
  }
  thread_ = Executor::system().start(concat("ps-link-", options_.worker),
                                     [this] { connect_again_and_again(); });
}

RemoteWorker::~RemoteWorker() {
  subscription_.reset();
  stop();
  thread_->join();
}

void RemoteWorker::stop() {
  stop_.set();
  give_up(~std::uint64_t{0}, stopped());
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

/// Fails the calls to the connected process if its incarnation is at most `incarnation`; called
/// when the job has declared these incarnations lost, and by stop().
void RemoteWorker::give_up(std::uint64_t incarnation, const Error& error) {
  std::shared_ptr<Connection> connection;
  {
    const MutexLock lock(mutex_);
    connection = connection_ ? connection_ : greeted_;
    if (connection == nullptr) return;
    if (connection->client->server_incarnation() > incarnation) return;  // already a newer process
    loss_ = error;
  }
  connection->client->fail_all(error);
}

/// Returns an error if the worker defines other steps or belongs to another job; otherwise nullopt.
std::optional<Error> RemoteWorker::refusal() const {
  const MutexLock lock(mutex_);
  const bool is_refused =
      !connection_ && why_gone_ && why_gone_->code() == ErrorCode::kFailedPrecondition;
  return is_refused ? why_gone_ : std::nullopt;
}

std::shared_ptr<RemoteWorker::Connection> RemoteWorker::connection() const {
  const MutexLock lock(mutex_);
  return connection_;
}

TaskOutcome RemoteWorker::run(const WorkerTask& task) {
  using Kind = AttemptReport::Kind;
  const auto report = [&](Kind kind, ErrorOrigin origin, ErrorCode code, const std::string& text) {
    return AttemptReport{kind, options_.worker, origin, code, text};
  };
  const std::uint64_t call = next_call_.fetch_add(1);
  std::shared_ptr<Connection> connection;
  std::shared_ptr<RpcReply> reply;
  try {
    Packet packet = encode(request_of(call, task));
    const MutexLock lock(mutex_);
    if (connection_ == nullptr || connection_->client->why_broken()) {
      return report(Kind::kNotStarted, ErrorOrigin::kWorker, ErrorCode::kUnavailable,
                    concat(name_, " is not connected"));
    }
    connection = connection_;
    reply = connection->client->start(std::move(packet));
    connection->sent.push_back({call, task.name(), reply});
  } catch (const Error& error) {
    return report(Kind::kFailed, ErrorOrigin::kInput, ErrorCode::kInvalidArgument, error.message());
  }
  task.token->on_cancel([weak = std::weak_ptr(connection), call] {
    WorkerRequest cancel;
    cancel.message.mutable_cancel()->set_task(call);
    if (const auto alive = weak.lock()) (void)alive->client->start(encode(std::move(cancel)));
  });
  TaskOutcome outcome;
  std::optional<Error> lost;
  try {
    outcome = decode_outcome(reply->wait(TimePoint::max()));
  } catch (const Error& error) {
    lost = error;
    connection->client->fail_all(error);  // the error may also mean that the reply was invalid
  }
  const MutexLock lock(mutex_);
  std::deque<Sent>& sent = connection->sent;
  if (lost && !connection->lost_first) {
    // Another thread may not have processed the reply to an older call yet.
    const auto is_unanswered = [&](const Sent& each) {
      return each.call == call || !each.reply->has_answer();
    };
    connection->lost_first = std::ranges::find_if(sent, is_unanswered)->call;
  }
  std::erase_if(sent, [&](const Sent& each) { return each.call == call; });
  if (!lost) return outcome;
  return report(connection->lost_first == call ? Kind::kInterrupted : Kind::kNotStarted,
                ErrorOrigin::kWorker, ErrorCode::kUnavailable,
                loss_ ? loss_->message() : lost->message());
}

void RemoteWorker::release(const PerWorkerHandle& handle) {
  WorkerRequest release;
  put_handle(handle, *release.message.mutable_release()->mutable_handle());
  if (const auto alive = connection()) (void)alive->client->start(encode(std::move(release)));
}

std::string RemoteWorker::doing() const {
  MutexLock lock(mutex_);
  if (connection_ == nullptr) return "not connected";
  return connection_->sent.empty() ? "nothing" : connection_->sent.front().name;
}

void RemoteWorker::connect_again_and_again() {
  while (!stop_.is_set()) {
    if (const std::shared_ptr<Connection> connection = open()) {
      report_change();
      close(*connection);
      report_change();
    } else {
      stop_.wait_until(deadline_after(Clock::system().now(), durations::kTryAgain));
    }
  }
}

/// Opens a connection and sends a hello. While the hello is pending, stop() and the job can end it
/// through greeted_.
std::shared_ptr<RemoteWorker::Connection> RemoteWorker::open() {
  auto connection = std::make_shared<Connection>();
  try {
    connection->client = options_.connect();
    {
      const MutexLock lock(mutex_);
      if (stop_.is_set()) throw stopped();
      greeted_ = connection;
      loss_.reset();
    }
    WorkerRequest hello;
    hello.message.mutable_hello()->set_steps(options_.steps());
    (void)connection->client->call(encode(std::move(hello)),
                                   deadline_after(Clock::system().now(), durations::kJoinTimeout));
    is_alive_.store(true);
    const MutexLock lock(mutex_);
    connection_ = std::move(greeted_);
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
  if (std::exchange(was_lost_, false))
    log_warning(concat("coordinator: ", name_, " has reconnected"));
  return connection;
}

/// Waits until the connection is broken, then closes it.
void RemoteWorker::close(Connection& connection) {
  const std::string broken = connection.client->wait_for_end();
  is_alive_.store(false);
  std::string why;
  bool has_tasks = false;
  {
    const MutexLock lock(mutex_);
    connection_.reset();
    why_gone_ = loss_.value_or(
        Error(ErrorCode::kUnavailable, concat(name_, ": the connection broke: ", broken)));
    why = why_gone_->message();
    has_tasks = !connection.sent.empty() || connection.lost_first;
  }
  if (stop_.is_set()) return;
  was_lost_ = true;
  log_warning(concat("coordinator: ", name_, " is lost",
                     has_tasks ? ", and its closures are reassigned" : "", ": ", why));
}

void RemoteWorker::complain(const Error& error) {
  if (stop_.is_set()) return;
  const bool is_absent =
      error.code() == ErrorCode::kDeadlineExceeded || error.code() == ErrorCode::kUnavailable;
  const TimePoint now = Clock::system().now();
  // An unreachable worker, which may not have started yet, is logged only once per interval.
  const TimePoint again_at = deadline_after(now, 6 * durations::kSayAgainEvery);
  if (complain_at_ == TimePoint{}) complain_at_ = again_at;
  const bool is_news = std::exchange(last_complaint_, error.message()) != error.message();
  if (is_absent ? now < complain_at_ : !is_news) return;
  complain_at_ = again_at;
  log_warning(concat("coordinator: no connection to ", name_, ": ", error.message()));
}

}  // namespace tutti::internal
