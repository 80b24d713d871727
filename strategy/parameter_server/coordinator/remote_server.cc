// Orders to the life that is there, and looks whether it still is.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/remote_server.h"

#include <utility>

namespace tutti::internal {

RemoteServer::RemoteServer(RemoteServerOptions options, std::function<void()> changed)
    : TaskLink(std::move(options.link)), run_(options.run), look_every_(options.look_every) {
  watch(std::move(changed));
  begin("ps-order-link");
}

std::uint64_t RemoteServer::life() const {
  const MutexLock lock(mutex_);
  return client_ ? life_ : 0;
}

std::string RemoteServer::why_gone() const {
  const MutexLock lock(mutex_);
  return concat(name(), ": ", why_gone_ ? why_gone_->message() : "was not met yet");
}

void RemoteServer::end_set_up() {
  const MutexLock lock(mutex_);
  sets_up_ = false;
}

std::shared_ptr<RpcReply> RemoteServer::start(ServerOrder order) {
  std::shared_ptr<RpcClient> client;
  {
    const MutexLock lock(mutex_);
    if (life_ == order.life) client = client_;
  }
  if (client) return client->start(encode(order));
  if (life() == 0) fail(ErrorCode::kUnavailable, why_gone());
  fail(ErrorCode::kUnavailable, name(), ": was started again");
}

std::uint64_t RemoteServer::begin_look() {
  const MutexLock lock(mutex_);
  changed_.notify_all();
  return ++last_look_;
}

bool RemoteServer::has_looked(std::uint64_t look) const {
  const MutexLock lock(mutex_);
  return client_ == nullptr || num_looked_ >= look;
}

void RemoteServer::greet(RpcClient& client) {
  const std::uint64_t life = meet(client);
  const MutexLock lock(mutex_);
  life_ = life;
  num_looked_ = last_look_;  // none was there when they began
}

std::uint64_t RemoteServer::meet(RpcClient& client) {
  bool sets_up = false;
  {
    const MutexLock lock(mutex_);
    sets_up = sets_up_;
  }
  return decode_life(client.call(encode(ServerOrder{0, orders::Meet{run_, sets_up}}),
                                 deadline_after(Clock::system().now(), durations::kJoinTimeout)));
}

std::uint64_t RemoteServer::next_look() {
  const TimePoint look_at = deadline_after(Clock::system().now(), look_every_);
  const MutexLock lock(mutex_);
  (void)changed_.wait_until(mutex_, look_at, [this]() TUTTI_REQUIRES(mutex_) {
    return loss_.has_value() || last_look_ > num_looked_;
  });
  if (loss_) throw *loss_;
  return last_look_;
}

void RemoteServer::work(RpcClient& client) {
  const std::uint64_t life = this->life();
  for (;;) {
    const std::uint64_t look = next_look();
    if (meet(client) != life) {
      fail(ErrorCode::kUnavailable, "it died, and was started again");
    }
    bool was_asked_for = false;
    {
      const MutexLock lock(mutex_);
      was_asked_for = std::exchange(num_looked_, look) < look;
    }
    if (was_asked_for) tell_change();
  }
}

/// Callers that wait for its answers must not wait for those of the next incarnation.
void RemoteServer::ended(std::shared_ptr<RpcClient> client, const Error& why) {
  client->fail_all(Error(ErrorCode::kUnavailable, concat(name(), ": ", why.message())));
}

}  // namespace tutti::internal
