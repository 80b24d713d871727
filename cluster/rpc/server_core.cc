// Clients come, stay away for a while, and leave.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/rpc/server_core.h"

#include <algorithm>
#include <utility>

#include "tutti/cluster/tcp/opening.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kMostClients = 4096;

}  // namespace

ServerCore::ServerCore(const RpcServerOptions& options, RpcHandler& handler)
    : options_(options), handler_(handler), run_(new_run_nonce()) {
  keeper_ = Executor::system().start("rpc-keeper", [this] { keep(); });
}

std::shared_ptr<ServerSession> ServerCore::open(const std::shared_ptr<RpcLink>& link, RpcPeer peer,
                                                const RpcFrame& frame) {
  const bool is_open = frame.kind == RpcFrame::Kind::kOpen && frame.call != 0 &&
                       std::ranges::is_sorted(frame.numbers);
  if (!is_open) fail(ErrorCode::kDataLoss, "rpc: ", peer, " began with a frame that opens nothing");
  peer.client = frame.call;
  std::shared_ptr<ServerSession> session;
  {
    MutexLock lock(mutex_);
    if (stops_ || (sessions_.size() >= kMostClients && !sessions_.contains(frame.call))) {
      return nullptr;
    }
    auto& place = sessions_[frame.call];
    if (!place) {
      place = std::make_shared<ServerSession>(
          handler_, peer,
          ServerSession::Limits{options_.bytes_per_client, options_.longest_payload},
          [this] { look_now(); });
    }
    session = place;
  }
  if (!session->peer().task.same_task(peer.task)) {
    fail(ErrorCode::kFailedPrecondition, "rpc: ", peer, " has the number of ", session->peer());
  }
  RpcFrame welcome;
  welcome.kind = RpcFrame::Kind::kWelcome;
  welcome.call = run_;
  welcome.numbers = {options_.longest_payload};
  const bool is_attached = session->attach(link, frame.numbers, std::move(welcome));
  return is_attached ? session : nullptr;
}

std::vector<std::shared_ptr<ServerSession>> ServerCore::sessions() const {
  std::vector<std::shared_ptr<ServerSession>> all;
  MutexLock lock(mutex_);
  for (const auto& [number, session] : sessions_) all.push_back(session);
  return all;
}

void ServerCore::look_now() {
  MutexLock lock(mutex_);
  looks_ = true;
  changed_.notify_all();
}

TimePoint ServerCore::look_again() const {
  TimePoint next = TimePoint::max();
  for (const auto& session : sessions()) {
    if (const auto since = session->away_since()) {
      next = std::min(next, deadline_after(*since, options_.linger));
    }
  }
  return next;
}

void ServerCore::let_go(TimePoint now) {
  for (const auto& session : sessions()) {
    const auto since = session->away_since();
    if (since && now >= deadline_after(*since, options_.linger)) session->leave();
    if (!session->has_left()) continue;
    session->end();
    MutexLock lock(mutex_);
    sessions_.erase(session->peer().client);
  }
}

void ServerCore::keep() {
  for (;;) {
    const TimePoint next = look_again();
    {
      MutexLock lock(mutex_);
      changed_.wait_until(mutex_, next, [this]() TUTTI_REQUIRES(mutex_) { return looks_; });
      looks_ = false;
      if (stops_) return;
    }
    let_go(Clock::system().now());
  }
}

void ServerCore::stop() {
  {
    MutexLock lock(mutex_);
    if (stops_) return;
    stops_ = true;
    looks_ = true;
    changed_.notify_all();
  }
  keeper_->join();
  for (const auto& session : sessions()) session->end();
  MutexLock lock(mutex_);
  sessions_.clear();
}

}  // namespace tutti::internal
