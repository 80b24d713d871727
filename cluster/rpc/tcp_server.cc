// A server on plain TCP: a thread at the door, and one for each connection that was let in.
// SPDX-License-Identifier: Apache-2.0
//
// A *newcomer* is a connection whose handshake has not ended. What strangers can use up is bounded:
// so many newcomers, so many seconds and bytes each, nothing of theirs parsed but the handshake.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <functional>
#include <list>
#include <utility>

#include "tutti/cluster/handshake/refusal_log.h"
#include "tutti/cluster/rpc/server_core.h"
#include "tutti/cluster/rpc/tcp_connection.h"
#include "tutti/cluster/tcp/address_limit.h"
#include "tutti/cluster/tcp/stream.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kMostNewcomers = 256;
constexpr Duration kHandshakeLimit = std::chrono::seconds(5);
constexpr std::size_t kMostConnections = 4096;
constexpr Duration kPauseWithoutDescriptors = std::chrono::milliseconds(100);

class TcpRpcLink final : public RpcLink {
 public:
  explicit TcpRpcLink(std::shared_ptr<RpcTcpConnection> connection)
      : connection_(std::move(connection)) {}
  void send(RpcFrame frame) override { connection_->send(std::move(frame)); }
  void close() override { connection_->close(); }
  void read_on() override { connection_->wake(); }

 private:
  const std::shared_ptr<RpcTcpConnection> connection_;
};

/// A connection that was let in, with its thread.
class TcpRpcPeer {
 public:
  TcpRpcPeer(ServerCore& core, FileDescriptor socket, const Handshake& handshake,
             const std::string& address, std::function<void()> on_end)
      : core_(core),
        peer_(peer_of(*handshake.peer(), address)),
        on_end_(std::move(on_end)),
        connection_(std::make_shared<RpcTcpConnection>(std::move(socket), handshake,
                                                       Handshake::Side::kServer,
                                                       core.options().longest_payload)),
        link_(std::make_shared<TcpRpcLink>(connection_)) {
    thread_ = Executor::system().start("rpc-connection", [this] { serve(); });
  }
  ~TcpRpcPeer() {
    connection_->close();
    thread_->join();
  }
  bool is_over() const { return is_over_; }
  std::string reason() const { return reason_; }

 private:
  void serve() {
    try {
      const RpcFrame first =
          connection_->receive(deadline_after(Clock::system().now(), kHandshakeLimit));
      if (const auto session = core_.open(link_, peer_, first)) {
        (void)connection_->serve(
            [&](std::size_t bytes) { return session->lease(*link_, bytes); },
            [&](RpcFrame frame) { session->received(*link_, std::move(frame)); });
        session->detach(*link_);
      }
    } catch (const Error& error) {
      reason_ = error.message();
    }
    connection_->close();
    is_over_ = true;
    on_end_();
  }

  ServerCore& core_;
  const RpcPeer peer_;
  const std::function<void()> on_end_;
  const std::shared_ptr<RpcTcpConnection> connection_;
  const std::shared_ptr<TcpRpcLink> link_;
  std::string reason_;  // once it is over: why it did not begin
  std::atomic<bool> is_over_{false};
  std::unique_ptr<Thread> thread_;
};

struct Newcomer {
  FileDescriptor socket;
  std::string address;  // without the port
  Handshake handshake;
  TimePoint deadline{};
};

class TcpRpcServer final : public RpcServer {
 public:
  TcpRpcServer(const RpcServerOptions& options, RpcHandler& handler, const Endpoint& endpoint)
      : options_(options),
        listener_(listen_at(endpoint)),
        wake_(make_wake_event()),
        core_(options, handler) {
    thread_ = Executor::system().start("rpc-door", [this] { serve(); });
  }
  ~TcpRpcServer() override {
    stopping_ = true;
    wake();
    thread_->join();
    peers_.clear();
    core_.stop();
  }
  std::string target() const override { return concat("tcp://", listener_.endpoint.to_string()); }

 private:
  void wake() {
    const std::uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof(one));
  }

  void serve() {
    while (!stopping_) {
      wait();
      const TimePoint now = Clock::system().now();
      newcomers_.remove_if([&](Newcomer& newcomer) { return is_done(newcomer, now); });
      accept_all(now);
      peers_.remove_if([&](const TcpRpcPeer& peer) {
        if (peer.is_over() && !peer.reason().empty()) refusals_.note(peer.reason(), now);
        return peer.is_over();
      });
    }
  }

  void wait() {
    const TimePoint now = Clock::system().now();
    TimePoint end = TimePoint::max();
    descriptors_.assign({{wake_.get(), POLLIN, 0}});
    if (now >= accept_again_) descriptors_.push_back({listener_.socket.get(), POLLIN, 0});
    if (now < accept_again_) end = std::min(end, accept_again_);
    for (const Newcomer& newcomer : newcomers_) {
      descriptors_.push_back({newcomer.socket.get(), POLLIN, 0});
      end = std::min(end, newcomer.deadline);
    }
    (void)poll_until(descriptors_, end);
    std::uint64_t count = 0;
    if (descriptors_[0].revents != 0) (void)!::read(wake_.get(), &count, sizeof(count));
  }

  bool is_done(Newcomer& newcomer, TimePoint now) {
    if (now >= newcomer.deadline) return true;
    std::array<std::byte, 1024> buffer{};
    std::size_t count = 0, written = 0;
    const ByteFlow flow = read_now(newcomer.socket, std::span<std::byte>(buffer), count);
    Handshake& handshake = newcomer.handshake;
    const std::size_t taken = handshake.take(std::span<const std::byte>(buffer).first(count));
    if (handshake.is_proven()) handshake.decide(refusal());
    const auto answer = handshake.bytes_to_send();  // few: they fit into an empty buffer
    (void)write_now(newcomer.socket, std::span<const std::byte>(answer), written);
    if (handshake.state() == Handshake::State::kRefused) {
      refusals_.note(concat(newcomer.address, ": ", handshake.reason()), now);
    }
    if (handshake.state() == Handshake::State::kRunning) return flow == ByteFlow::kClosed;
    // Nothing may come before the answer to the proof.
    if (handshake.state() == Handshake::State::kDone && taken == count) admit(newcomer);
    return true;
  }

  std::string refusal() const {
    if (peers_.size() < kMostConnections) return "";
    return concat("it has ", peers_.size(), " connections already");
  }

  void admit(Newcomer& newcomer) {
    limit_.give_back(newcomer.address);
    peers_.emplace_back(core_, std::move(newcomer.socket), newcomer.handshake, newcomer.address,
                        [this] { wake(); });
  }

  void accept_all(TimePoint now) {
    if (now < accept_again_) return;
    for (;;) {
      errno = 0;
      FileDescriptor socket = accept_from(listener_.socket);
      if (!socket.is_open()) {
        const bool has_none_left = errno == EMFILE || errno == ENFILE || errno == ENOMEM;
        if (has_none_left) accept_again_ = deadline_after(now, kPauseWithoutDescriptors);
        if (has_none_left && !newcomers_.empty()) newcomers_.pop_front();
        return;
      }
      std::string address = address_of_peer(socket);
      if (!limit_.allows(address, now)) {
        refusals_.note(concat(address, " opens too many"), now);
        continue;
      }
      if (newcomers_.size() == kMostNewcomers) newcomers_.pop_front();
      newcomers_.push_back(
          {std::move(socket), std::move(address),
           Handshake(Handshake::Side::kServer, server_hello(options_), options_.secret),
           deadline_after(now, kHandshakeLimit)});
    }
  }

  const RpcServerOptions options_;
  const Listener listener_;
  const FileDescriptor wake_;
  ServerCore core_;
  // The thread's own.
  std::list<Newcomer> newcomers_;
  std::list<TcpRpcPeer> peers_;
  std::vector<pollfd> descriptors_;
  TimePoint accept_again_{};
  AddressLimit limit_;
  RefusalLog refusals_{"rpc"};
  std::atomic<bool> stopping_{false};
  std::unique_ptr<Thread> thread_;
};

}  // namespace

std::unique_ptr<RpcServer> start_rpc_tcp(const RpcServerOptions& options, RpcHandler& handler) {
  if (options.tls.is_set()) {
    fail(ErrorCode::kUnimplemented,
         "RpcServer: the wire tcp has no TLS; use the wire grpc, or a job secret");
  }
  return std::make_unique<TcpRpcServer>(options, handler,
                                        parse_listen_address(options.address).value());
}

}  // namespace tutti::internal
