// Calls between threads of one process: packets are handed on, nothing is copied.
// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <memory>
#include <utility>

#include "tutti/cluster/handshake/handshake.h"
#include "tutti/cluster/rpc/server_core.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"

namespace tutti::internal {
namespace {

/// The servers of this process by name.
class InProcessServers {
 public:
  static InProcessServers& get() {
    static InProcessServers servers;
    return servers;
  }
  /// "": a name of its own.
  std::string add(std::string name, const std::shared_ptr<ServerCore>& core) {
    MutexLock lock(mutex_);
    while (name.empty() || (name.starts_with("server-") && cores_.contains(name))) {
      name = concat("server-", ++num_names_);
    }
    if (!cores_.try_emplace(name, core).second) {
      fail(ErrorCode::kUnavailable, "rpc: the name '", name,
           "' is taken by another server of this process; expected a new one (\"\" gives one)");
    }
    return name;
  }
  void remove(const std::string& name) {
    MutexLock lock(mutex_);
    cores_.erase(name);
  }
  std::shared_ptr<ServerCore> find(const std::string& name) {
    MutexLock lock(mutex_);
    const auto found = cores_.find(name);
    return found == cores_.end() ? nullptr : found->second.lock();
  }

 private:
  Mutex mutex_;
  std::map<std::string, std::weak_ptr<ServerCore>> cores_ TUTTI_GUARDED_BY(mutex_);
  std::uint64_t num_names_ TUTTI_GUARDED_BY(mutex_) = 0;
};

class InProcessLink final : public RpcLink {
 public:
  explicit InProcessLink(std::shared_ptr<RpcFrameSink> sink) : sink_(std::move(sink)) {}
  void send(RpcFrame frame) override {
    if (ended_.is_set()) return;
    if (frame.kind == RpcFrame::Kind::kWelcome) {
      welcome_ = std::move(frame);
    } else if (const auto sink = sink_.lock()) {
      sink->received(std::move(frame));
    }
  }
  void close() override { ended_.set(); }
  bool can_break() const override { return false; }
  bool may_run_handler() const override { return false; }  // it is the caller's thread

  RpcFrame& welcome() { return welcome_; }
  Event& ended() { return ended_; }

 private:
  const std::weak_ptr<RpcFrameSink> sink_;
  RpcFrame welcome_;  // before any other frame, on the thread that connects
  Event ended_;
};

class InProcessClientWire final : public RpcClientWire {
 public:
  InProcessClientWire(std::shared_ptr<InProcessLink> link, std::shared_ptr<ServerCore> core,
                      std::shared_ptr<ServerSession> session)
      : link_(std::move(link)), core_(std::move(core)), session_(std::move(session)) {}
  ~InProcessClientWire() override { session_->detach(*link_); }
  void send(RpcFrame frame) override { session_->received(*link_, std::move(frame)); }
  std::string serve() override {
    link_->ended().wait_until(TimePoint::max());
    session_->detach(*link_);
    return "the server has ended";
  }
  void finish(TimePoint) override { link_->close(); }
  bool can_break() const override { return false; }

 private:
  const std::shared_ptr<InProcessLink> link_;
  const std::shared_ptr<ServerCore> core_;  // the session tells it of changes
  const std::shared_ptr<ServerSession> session_;
};

/// Both sides prove what they would have to prove on any wire.
void shake_hands(Handshake& client, Handshake& server) {
  for (int round = 0; round < 4; ++round) {
    (void)server.take(client.bytes_to_send());
    const bool waits = server.state() == Handshake::State::kRunning && server.is_proven();
    if (waits) server.decide("");
    (void)client.take(server.bytes_to_send());
  }
}

class InProcessRpcServer final : public RpcServer {
 public:
  InProcessRpcServer(const RpcServerOptions& options, RpcHandler& handler)
      : core_(std::make_shared<ServerCore>(options, handler)),
        name_(InProcessServers::get().add(options.address, core_)) {}
  ~InProcessRpcServer() override {
    InProcessServers::get().remove(name_);
    core_->stop();
  }
  std::string target() const override { return concat("inproc://", name_); }

 private:
  const std::shared_ptr<ServerCore> core_;
  const std::string name_;
};

}  // namespace

RpcAttempt connect_rpc_in_process(const RpcConnectParameters& parameters) {
  RpcAttempt attempt;
  const auto core = InProcessServers::get().find(parameters.address);
  if (!core) {
    attempt.reason = "no server of this process has this name";
    return attempt;
  }
  Handshake client(Handshake::Side::kClient, parameters.hello, parameters.secret);
  Handshake server(Handshake::Side::kServer, server_hello(core->options()), core->options().secret);
  shake_hands(client, server);
  attempt.is_final = client.state() != Handshake::State::kDone;
  attempt.reason = client.reason();
  if (attempt.is_final) return attempt;
  attempt.reason = other_server(parameters.server, *client.peer());
  attempt.is_final = !attempt.reason.empty();
  if (attempt.is_final) return attempt;
  const auto link = std::make_shared<InProcessLink>(parameters.sink);
  const auto session = core->open(link, peer_of(*server.peer(), "inproc"), parameters.open);
  if (!session) {
    attempt.reason = "the server is about to end, or to forget this client";
    return attempt;
  }
  take_welcome(attempt, std::move(link->welcome()));
  attempt.server_incarnation = client.peer()->incarnation;
  attempt.wire = std::make_shared<InProcessClientWire>(link, core, session);
  return attempt;
}

std::unique_ptr<RpcServer> start_rpc_in_process(const RpcServerOptions& options,
                                                RpcHandler& handler) {
  RpcServerOptions named = options;
  // The default address is one for sockets.
  if (named.address == RpcServerOptions().address) named.address.clear();
  return std::make_unique<InProcessRpcServer>(named, handler);
}

}  // namespace tutti::internal
