// Clients come, stay away for a while, and leave.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/rpc/server_core.h"

#include <algorithm>

#include "cluster/control/job_messages.h"
#include "cluster/rpc/call_identity.h"
#include "tutti/core/random.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kMostClients = 4096;

/// Returns "127.0.0.1:4711" of gRPC's "ipv4:127.0.0.1:4711", "[::1]:4711" of its
/// "ipv6:%5B::1%5D:4711", and "" within a machine.
std::string address_of(const std::string& peer) {
  if (!peer.starts_with("ipv4:") && !peer.starts_with("ipv6:")) return "";
  std::string address = peer.substr(5);
  for (const auto& [code, bracket] : {std::pair("%5B", "["), std::pair("%5D", "]")}) {
    if (const std::size_t at = address.find(code); at != address.npos) {
      address.replace(at, 3, bracket);
    }
  }
  return address;
}

}  // namespace

ServerCore::ServerCore(const RpcServerOptions& options, RpcHandlers handlers)
    : options_(options), handlers_(std::move(handlers)), run_(new_run_nonce()) {
  keeper_ = Executor::system().start("rpc-keeper", [this] { keep(); });
}

ServerCore::~ServerCore() {
  {
    MutexLock lock(mutex_);
    stops_ = looks_ = true;
    changed_.notify_all();
  }
  keeper_->join();
  for (const auto& [key, session] : sessions()) session->end();
}

ServerStream* ServerCore::accept(RpcMethod method, grpc::CallbackServerContext& context) {
  auto stream = std::make_shared<ServerStream>(*this, context, options_.longest_payload);
  {
    MutexLock lock(mutex_);
    streams_.insert(stream);
  }
  try {
    const std::shared_ptr<ServerSession> session = open(method, context);
    context.AddInitialMetadata(kServerKey, make_called_server(options_, run_).SerializeAsString());
    stream->welcome(session);  // before answers that wait for a stream
    if (!session->attach(stream)) fail(ErrorCode::kUnavailable, "this client is just leaving");
    stream->begin();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kFailedPrecondition) note_refusal(error.message());
    stream->refuse(error);
  }
  return stream.get();
}

std::shared_ptr<ServerSession> ServerCore::open(RpcMethod method,
                                                grpc::CallbackServerContext& context) {
  if (!handlers_.contains(method)) {
    fail(ErrorCode::kUnimplemented, options_.self, ": does not serve ", path_of(method));
  }
  RpcPeer peer;
  peer.address = address_of(context.peer());
  if (const auto caller = caller_in(context.client_metadata())) {
    const Member member = from_proto(caller->task());
    peer.task = {member.task.job, member.task.index, peer.address};
    peer.incarnation = member.incarnation;
    peer.client = caller->client();
    if (const std::string why = refusal_of(*caller, options_); !why.empty()) {
      fail(ErrorCode::kFailedPrecondition, why);
    }
  } else {
    peer.task = {"client", 0, peer.address};
    peer.client = new_run_nonce();
  }
  return session_of(method, peer);
}

std::shared_ptr<ServerSession> ServerCore::session_of(RpcMethod method, const RpcPeer& peer) {
  const Key key(method, peer.client);
  std::shared_ptr<ServerSession> session;
  {
    MutexLock lock(mutex_);
    if (takes_none_) fail(ErrorCode::kUnavailable, options_.self, ": the server ends");
    if (sessions_.size() >= kMostClients && !sessions_.contains(key)) {
      fail(ErrorCode::kUnavailable, options_.self, ": has ", kMostClients, " clients");
    }
    auto& place = sessions_[key];
    if (!place) {
      place = std::make_shared<ServerSession>(*handlers_.at(method), peer, options_,
                                              [this] { look_now(); });
    }
    session = place;
  }
  if (session->peer().task.same_task(peer.task)) return session;
  fail(ErrorCode::kFailedPrecondition, "rpc: ", peer, " has the number of ", session->peer());
}

void ServerCore::remove(const std::shared_ptr<ServerStream>& stream) {
  MutexLock lock(mutex_);
  streams_.erase(stream);
}

void ServerCore::note_refusal(const std::string& reason) {
  MutexLock lock(mutex_);
  refusals_.note(reason, Clock::system().now());
}

void ServerCore::cancel_all() {
  std::set<std::shared_ptr<ServerStream>> streams;
  {
    MutexLock lock(mutex_);
    takes_none_ = true;
    streams = streams_;
  }
  for (const auto& stream : streams) stream->cancel();
}

std::vector<std::pair<ServerCore::Key, std::shared_ptr<ServerSession>>> ServerCore::sessions()
    const {
  MutexLock lock(mutex_);
  return {sessions_.begin(), sessions_.end()};
}

void ServerCore::look_now() {
  MutexLock lock(mutex_);
  looks_ = true;
  changed_.notify_all();
}

TimePoint ServerCore::look_again() const {
  TimePoint next = TimePoint::max();
  for (const auto& [key, session] : sessions()) {
    if (const auto since = session->away_since()) {
      next = std::min(next, deadline_after(*since, options_.linger));
    }
  }
  return next;
}

void ServerCore::let_go(TimePoint now) {
  for (const auto& [key, session] : sessions()) {
    const auto since = session->away_since();
    if (since && now >= deadline_after(*since, options_.linger)) session->leave();
    if (!session->has_left()) continue;
    session->end();
    MutexLock lock(mutex_);
    sessions_.erase(key);
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

}  // namespace tutti::internal
