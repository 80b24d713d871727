// One thread connects, asks whether the server is there, and connects again.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/coordinator/remote_server.h"

#include <algorithm>
#include <utility>

#include "tutti/core/logging.h"
#include "tutti/strategy/parameter_server/protocol/durations.h"

namespace tutti::internal {

RemoteServer::RemoteServer(RemoteServerOptions options, std::function<void()> changed)
    : options_(std::move(options)), changed_(std::move(changed)) {
  if (options_.when_lost) {
    subscription_ = options_.when_lost(
        [this](std::uint64_t incarnation, const Error& error) { give_up(incarnation, error); });
  }
  thread_ = Executor::system().start("ps-order-link", [this] { run(); });
}

RemoteServer::~RemoteServer() {
  subscription_.reset();
  stop_.set();
  std::shared_ptr<RpcClient> client;
  {
    const MutexLock lock(mutex_);
    client = client_ ? client_ : meeting_;
    look_wanted_.notify_all();
  }
  if (client) client->fail_all(Error(ErrorCode::kCancelled, "the coordinator was stopped"));
  client.reset();
  thread_->join();
}

std::uint64_t RemoteServer::life() const {
  const MutexLock lock(mutex_);
  return life_;
}

std::string RemoteServer::why_gone() const {
  const MutexLock lock(mutex_);
  return concat(options_.name, ": ", why_gone_);
}

void RemoteServer::end_set_up() {
  const MutexLock lock(mutex_);
  sets_up_ = false;
}

std::shared_ptr<RpcReply> RemoteServer::start(ServerOrder order) {
  std::shared_ptr<RpcClient> client;
  std::string why;
  {
    const MutexLock lock(mutex_);
    if (life_ == order.life) client = client_;
    why = life_ == 0 ? why_gone_ : "was started again";
  }
  if (client) return client->start(encode(order));
  fail(ErrorCode::kUnavailable, options_.name, ": ", why);
}

std::uint64_t RemoteServer::begin_look() {
  const MutexLock lock(mutex_);
  look_wanted_.notify_all();
  return ++last_look_;
}

bool RemoteServer::has_looked(std::uint64_t look) const {
  const MutexLock lock(mutex_);
  return life_ == 0 || num_looked_ >= look;
}

void RemoteServer::give_up(std::uint64_t incarnation, const Error& error) {
  std::shared_ptr<RpcClient> client;
  {
    const MutexLock lock(mutex_);
    client = client_ ? client_ : meeting_;
    const bool is_that_life = client != nullptr && client->server_incarnation() <= incarnation;
    if (!is_that_life) return;  // news of a former one
  }
  client->fail_all(error);
  (void)begin_look();  // finds that out
}

void RemoteServer::run() {
  while (!stop_.is_set()) {
    const bool had_life = open();
    if (had_life) {
      changed_();
      look_after();
      changed_();
    }
    const Duration pause = had_life ? kBetweenLives : options_.between_tries;
    stop_.wait_until(deadline_after(Clock::system().now(), pause));
  }
}

/// Its destructor, and the job, end the meeting by it.
void RemoteServer::begin_meeting(std::shared_ptr<RpcClient> client) {
  const MutexLock lock(mutex_);
  if (stop_.is_set()) fail(ErrorCode::kCancelled, "the coordinator was stopped");
  meeting_ = std::move(client);
}

bool RemoteServer::open() {
  std::shared_ptr<RpcClient> client;  // destroyed without the lock
  try {
    client = options_.connect();
    begin_meeting(client);
    const std::uint64_t life = meet(*client);
    const MutexLock lock(mutex_);
    client_ = std::move(meeting_);
    life_ = life;
    num_looked_ = last_look_;  // none was there when they began
  } catch (const Error& error) {
    {
      const MutexLock lock(mutex_);
      meeting_.reset();
    }
    complain(error);
    return false;
  }
  last_complaint_.clear();
  complain_at_ = {};
  return true;
}

std::uint64_t RemoteServer::meet(RpcClient& client) {
  bool sets_up = false;
  {
    const MutexLock lock(mutex_);
    sets_up = sets_up_;
  }
  return decode_life(client.call(encode(ServerOrder{0, orders::Meet{options_.run, sets_up}}),
                                 deadline_after(Clock::system().now(), kDurableServerPatience)));
}

/// Waits until it is time for it, or the connection was away and is back; nothing: the link ends.
std::optional<std::uint64_t> RemoteServer::next_look(const RpcClient& client) {
  const TimePoint look_at = deadline_after(Clock::system().now(), options_.look_every);
  for (bool was_away = false;;) {
    const bool is_away = client.why_away().has_value();
    const bool is_back = was_away && !is_away;
    was_away = is_away;
    const TimePoint now = Clock::system().now();
    const MutexLock lock(mutex_);
    if (stop_.is_set()) return std::nullopt;
    if (is_back || now >= look_at || last_look_ > num_looked_) return last_look_;
    (void)look_wanted_.wait_until(
        mutex_, std::min(look_at, deadline_after(now, kGlanceEvery)),
        [this]() TUTTI_REQUIRES(mutex_) { return stop_.is_set() || last_look_ > num_looked_; });
  }
}

void RemoteServer::look_after() {
  std::shared_ptr<RpcClient> client;
  std::uint64_t life = 0;
  {
    const MutexLock lock(mutex_);
    client = client_;
    life = life_;
  }
  try {
    while (const auto look = next_look(*client)) {
      if (meet(*client) != life) {
        return end_life(Error(ErrorCode::kUnavailable, "it died, and was started again"));
      }
      if (note_look(*look)) changed_();
    }
    end_life(Error(ErrorCode::kCancelled, "the coordinator was stopped"));
  } catch (const Error& error) {
    end_life(error);
  }
}

/// Whether it was asked for, and somebody is to hear of it.
bool RemoteServer::note_look(std::uint64_t look) {
  const MutexLock lock(mutex_);
  return std::exchange(num_looked_, look) < look;
}

void RemoteServer::end_life(const Error& error) {
  std::shared_ptr<RpcClient> client;
  {
    const MutexLock lock(mutex_);
    client.swap(client_);
    life_ = 0;
    why_gone_ = error.message();
  }
  // Callers that wait for its answers must not wait for the next life's.
  client->fail_all(Error(ErrorCode::kUnavailable, concat(options_.name, ": ", error.message())));
}

void RemoteServer::complain(const Error& error) {
  if (stop_.is_set()) return;
  const bool is_absent =
      error.code() == ErrorCode::kDeadlineExceeded || error.code() == ErrorCode::kUnavailable;
  {
    const MutexLock lock(mutex_);
    why_gone_ = error.message();
  }
  const TimePoint now = Clock::system().now();
  if (complain_at_ == TimePoint{}) complain_at_ = deadline_after(now, kComplainEvery);
  const bool is_news = std::exchange(last_complaint_, error.message()) != error.message();
  if (is_absent ? now < complain_at_ : !is_news) return;
  complain_at_ = deadline_after(now, kComplainEvery);
  log_warning(concat("coordinator: no connection to ", options_.name, ": ", error.message()));
}

}  // namespace tutti::internal
