// The control server on plain TCP: one thread that waits for all sockets at once.
// SPDX-License-Identifier: Apache-2.0
//
// A *newcomer* is a connection whose handshake has not ended. What strangers can use up is bounded:
// so many newcomers, so many seconds and bytes each, nothing of theirs parsed but the handshake.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <list>
#include <vector>

#include "tutti/cluster/control/control_core.h"
#include "tutti/cluster/control/control_frame.h"
#include "tutti/cluster/control/wires.h"
#include "tutti/cluster/handshake/handshake.h"
#include "tutti/cluster/tcp/address_limit.h"
#include "tutti/cluster/tcp/stream.h"
#include "tutti/core/error.h"
#include "tutti/core/executor.h"
#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kMostNewcomers = 256;
constexpr Duration kHandshakeLimit = std::chrono::seconds(5);
constexpr std::size_t kMostUnsent = std::size_t{64} << 20;
constexpr Duration kPauseWithoutDescriptors = std::chrono::milliseconds(100);

/// What the core wants sent on one connection.
class TcpMemberLink final : public MemberLink {
 public:
  explicit TcpMemberLink(const Digest256& key) : seals_(key) {}
  void send(const Message& message) override {
    MutexLock lock(mutex_);
    if (is_closing_) return;
    append_frame(unsent_, message, seals_);
    if (unsent_.size() > kMostUnsent) is_closing_ = true;  // it does not read
  }
  void close() override {
    MutexLock lock(mutex_);
    is_closing_ = true;
  }
  bool has_unsent() const {
    MutexLock lock(mutex_);
    return !unsent_.empty();
  }
  /// Writes what fits; false: this connection is over.
  bool flush(const FileDescriptor& socket) {
    MutexLock lock(mutex_);
    std::size_t count = 0;
    if (write_now(socket, unsent_, count) == ByteFlow::kClosed) return false;
    unsent_.erase(unsent_.begin(), unsent_.begin() + static_cast<std::ptrdiff_t>(count));
    return !is_closing_;
  }

 private:
  mutable Mutex mutex_;
  std::vector<std::byte> unsent_ TUTTI_GUARDED_BY(mutex_);
  FrameSeals seals_ TUTTI_GUARDED_BY(mutex_);
  bool is_closing_ TUTTI_GUARDED_BY(mutex_) = false;
};

struct TcpPeer {
  FileDescriptor socket;
  std::string address;                 // without the port
  std::optional<Handshake> handshake;  // a newcomer's
  TimePoint deadline{};                // of the handshake
  std::shared_ptr<TcpMemberLink> link;
  std::optional<FrameReader> reader;
  bool is_newcomer() const { return link == nullptr; }
};

class TcpControlServer final : public ControlServer {
 public:
  TcpControlServer(const ControlServerOptions& options, const Endpoint& endpoint)
      : options_(options),
        listener_(listen_at(endpoint)),
        wake_(make_wake_event()),
        core_(options, probe_member) {
    thread_ = Executor::system().start("control-server", [this] { serve(); });
  }

  ~TcpControlServer() override {
    core_.wait_until_all_have_left(deadline_after(Clock::system().now(), options_.linger));
    core_.say_server_leaves();
    stopping_ = true;
    const std::uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof(one));
    thread_->join();
  }

  std::string target() const override { return concat("tcp://", listener_.endpoint.to_string()); }
  std::vector<Member> members() const override { return core_.members(); }
  std::vector<Verdict> verdicts_after(std::uint64_t number) const override {
    return core_.verdicts_after(number);
  }
  std::vector<Member> missing() const override { return core_.missing(); }

 private:
  void serve() {
    while (!stopping_) {
      wait();
      const TimePoint now = Clock::system().now();
      for (auto peer = peers_.begin(); peer != peers_.end();) {
        const auto next = std::next(peer);
        if (!read_from(*peer, now)) drop(peer, now);
        peer = next;
      }
      accept_all(now);
      core_.tick(now);
      flush_all(now);
    }
    flush_all(Clock::system().now());
  }

  void wait() {
    descriptors_.assign({{wake_.get(), POLLIN, 0}});
    const TimePoint now = Clock::system().now();
    TimePoint end = deadline_after(now, core_.poll_after());
    if (now >= accept_again_) descriptors_.push_back({listener_.socket.get(), POLLIN, 0});
    for (const TcpPeer& peer : peers_) {
      const bool writes = peer.link && peer.link->has_unsent();
      descriptors_.push_back(
          {peer.socket.get(), static_cast<short>(writes ? POLLIN | POLLOUT : POLLIN), 0});
      if (peer.is_newcomer()) end = std::min(end, peer.deadline);
    }
    (void)poll_until(descriptors_, end);
  }

  /// False: this peer is done with.
  bool read_from(TcpPeer& peer, TimePoint now) {
    if (peer.is_newcomer() && now >= peer.deadline) return false;
    for (int i = 0; i < 16; ++i) {  // then the others get their turn
      std::size_t count = 0;
      const ByteFlow flow = read_now(peer.socket, buffer_, count);
      const auto bytes = std::span<const std::byte>(buffer_).first(count);
      const bool goes_on = peer.is_newcomer() ? greet(peer, bytes) : take(peer, bytes, now);
      if (!goes_on || flow == ByteFlow::kClosed) return false;
      if (count < buffer_.size()) return true;
    }
    return true;
  }

  bool greet(TcpPeer& peer, std::span<const std::byte> bytes) {
    Handshake& handshake = *peer.handshake;
    const std::size_t taken = handshake.take(bytes);
    if (handshake.is_proven()) handshake.decide(core_.refusal_of(*handshake.peer()));
    std::size_t count = 0;  // the few bytes of a handshake fit into an empty buffer
    (void)write_now(peer.socket, handshake.bytes_to_send(), count);
    switch (handshake.state()) {
      case Handshake::State::kRunning:
        return true;
      case Handshake::State::kStranger:
        return false;
      case Handshake::State::kRefused:
        refusals_.note(handshake.reason(), Clock::system().now());
        return false;
      case Handshake::State::kDone:
        break;
    }
    peer.link = std::make_shared<TcpMemberLink>(handshake.session_key(Handshake::Side::kServer));
    peer.reader.emplace(FrameSeals(handshake.session_key(Handshake::Side::kClient)));
    core_.opened(peer.link, *handshake.peer());
    peer.handshake.reset();
    --num_newcomers_;
    limit_.give_back(peer.address);
    return take(peer, bytes.subspan(taken), Clock::system().now());
  }

  bool take(TcpPeer& peer, std::span<const std::byte> bytes, TimePoint now) {
    peer.reader->take(bytes);
    try {
      while (const auto message = peer.reader->next()) {
        if (!core_.received(peer.link.get(), *message, now)) return false;
      }
      return true;
    } catch (const Error& damaged) {
      refusals_.note(damaged.message(), now);
      return false;
    }
  }

  void drop(std::list<TcpPeer>::iterator peer, TimePoint now) {
    const std::shared_ptr<TcpMemberLink> link = peer->link;
    if (!link) --num_newcomers_;
    peers_.erase(peer);
    if (link) core_.closed(link.get(), now);
  }

  void accept_all(TimePoint now) {
    if (now < accept_again_) return;
    for (;;) {
      errno = 0;
      FileDescriptor socket = accept_from(listener_.socket);
      if (!socket.is_open()) {
        const bool has_none_left = errno == EMFILE || errno == ENFILE || errno == ENOMEM;
        if (has_none_left) accept_again_ = deadline_after(now, kPauseWithoutDescriptors);
        if (has_none_left) drop_oldest_newcomer(now);
        return;
      }
      std::string address = address_of_peer(socket);
      if (!limit_.allows(address, now)) {
        refusals_.note(concat(address, " opens too many"), now);
        continue;
      }
      limit_unacknowledged(socket, options_.health.unreachable_after);
      TcpPeer& peer = peers_.emplace_back();
      peer.socket = std::move(socket);
      peer.address = std::move(address);
      peer.handshake.emplace(Handshake::Side::kServer, server_hello(options_), options_.secret);
      peer.deadline = deadline_after(now, kHandshakeLimit);
      if (++num_newcomers_ > kMostNewcomers) drop_oldest_newcomer(now);
    }
  }

  void drop_oldest_newcomer(TimePoint now) {
    const auto oldest =
        std::ranges::find_if(peers_, [](const TcpPeer& peer) { return peer.is_newcomer(); });
    if (oldest != peers_.end()) drop(oldest, now);
  }

  void flush_all(TimePoint now) {
    for (auto peer = peers_.begin(); peer != peers_.end();) {
      const auto next = std::next(peer);
      if (peer->link && !peer->link->flush(peer->socket)) drop(peer, now);
      peer = next;
    }
  }

  const ControlServerOptions options_;
  const Listener listener_;
  const FileDescriptor wake_;
  ControlCore core_;
  std::list<TcpPeer> peers_;
  std::size_t num_newcomers_ = 0;
  std::vector<pollfd> descriptors_;
  std::array<std::byte, 16384> buffer_{};
  TimePoint accept_again_{};
  AddressLimit limit_;
  RefusalLog refusals_{"control"};
  std::atomic<bool> stopping_{false};
  std::unique_ptr<Thread> thread_;
};

}  // namespace

std::unique_ptr<ControlServer> start_tcp_server(const ControlServerOptions& options,
                                                const Endpoint& endpoint) {
  if (options.tls.is_set()) {
    fail(ErrorCode::kUnimplemented,
         "ControlServer: the wire tcp has no TLS; use the wire grpc, or a job secret");
  }
  return std::make_unique<TcpControlServer>(options, endpoint);
}

}  // namespace tutti::internal
