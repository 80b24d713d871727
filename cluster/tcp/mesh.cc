// Leading and following: who moves the bytes, and who is woken when.
// SPDX-License-Identifier: Apache-2.0
//
// Nobody may sleep through the end of his operation. A follower adds itself to followers_ before it
// looks whether its operation has ended; who ends an operation does so before it looks at
// followers_. Both sides are sequentially consistent, so one of them sees the other. It is the same
// between the leader, who says leader_sleeps_ before it looks at wishes_ a last time, and the
// others, who add a wish before they look at leader_sleeps_.
#include "tutti/cluster/tcp/mesh.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "tutti/core/executor.h"
#include "tutti/core/run_token.h"

namespace tutti::internal {
namespace {

// Waking a sleeping thread costs about as much.
constexpr Duration kSpin = std::chrono::microseconds(100);
constexpr Duration kLastWords = std::chrono::milliseconds(200);

}  // namespace

Peer::Peer(int rank, Connection connection, KeptBytes& kept)
    : connection_(std::move(connection)),
      name_(concat("rank ", rank, " (", connection_.address, ")")),
      inbox(connection_.socket.get(), name_, kept),
      outbox(connection_.socket.get()) {}

void Peer::fail(const Error& reason) {
  is_open = false;
  inbox.fail(reason);
  outbox.fail(reason);
}

/// Held by the thread that leads; given up also when an exception ends its turn.
class Mesh::Leadership {
 public:
  explicit Leadership(Mesh& mesh) : mesh_(mesh) {}
  ~Leadership() {
    MutexLock lock(mesh_.mutex_);
    mesh_.has_leader_ = false;
    if (mesh_.followers_ > 0) mesh_.changed_.notify_all();
  }
  Leadership(const Leadership&) = delete;
  Leadership& operator=(const Leadership&) = delete;

 private:
  Mesh& mesh_;
};

Mesh::Mesh(int rank, int size, Connections connections, const TcpOptions& options)
    : rank_(rank),
      size_(size),
      spins_(connections.ranks_on_this_machine <= num_hardware_threads()),
      kept_(options.bytes_kept),
      wake_event_(make_wake_event()) {
  for (int peer = 0; peer < size; ++peer) {
    auto& connection = connections.by_rank[static_cast<std::size_t>(peer)];
    peers_.push_back(peer == rank ? nullptr
                                  : std::make_unique<Peer>(peer, std::move(connection), kept_));
  }
}

void Mesh::send(int peer, const std::shared_ptr<Outgoing>& message) {
  if (!this->peer(peer).outbox.push(message)) tell_waiters();
}

bool Mesh::wait(const Operation& operation, int peer, TimePoint deadline) {
  while (!operation.has_ended()) {
    {
      MutexLock lock(mutex_);
      followers_.fetch_add(1);
      changed_.wait_until(mutex_, deadline, [&]() TUTTI_REQUIRES(mutex_) {
        return operation.has_ended() || !has_leader_;
      });
      followers_.fetch_sub(1);
      if (operation.has_ended()) break;
      if (has_leader_) return false;
      has_leader_ = true;
    }
    const Leadership leadership(*this);
    lead(operation, peer, deadline);
    if (!operation.has_ended()) return false;
  }
  return true;
}

void Mesh::test(const Operation& operation, int peer) {
  {
    MutexLock lock(mutex_);
    if (operation.has_ended() || has_leader_) return;
    has_leader_ = true;
  }
  const Leadership leadership(*this);
  if (!look_at(peer) || !operation.has_ended()) look(TimePoint::min());
}

bool Mesh::may_spin() const {
  static const int cores = num_hardware_threads();
  return spins_ && num_awake_threads() + 1 <= cores && !BlockedScope::current_thread_holds_token();
}

void Mesh::lead(const Operation& operation, int peer, TimePoint deadline) {
  Clock& clock = Clock::system();
  TimePoint spin_end = deadline_after(clock.now(), kSpin);
  for (;;) {
    const std::uint64_t seen = wishes_.load();
    const bool moved = look_at(peer) || (size_ > 2 && look(TimePoint::min()));
    if (moved && followers_ > 0) tell_waiters();
    if (operation.has_ended()) return;
    const TimePoint now = clock.now();
    if (now >= deadline) return;
    if (moved) {
      spin_end = deadline_after(now, kSpin);
      continue;
    }
    if (now < spin_end && may_spin()) continue;
    leader_sleeps_ = true;
    const bool nothing_new = wishes_ == seen && !operation.has_ended();
    if (nothing_new && look(deadline) && followers_ > 0) tell_waiters();
    leader_sleeps_ = false;
    if (operation.has_ended()) return;
    spin_end = deadline_after(clock.now(), kSpin);
  }
}

/// The connection that is most likely to bring something, without asking the system which.
bool Mesh::look_at(int peer) {
  Peer& first = this->peer(peer);
  if (!first.is_open) return false;
  const bool wrote = first.outbox.has_bytes() && first.outbox.flush();
  return read(first) || wrote;
}

/// All connections; waits until the deadline for the first that is ready.
bool Mesh::look(TimePoint deadline) {
  std::vector<pollfd> descriptors{{wake_event_.get(), POLLIN, 0}};
  std::vector<Peer*> open;
  for (const auto& peer : peers_) {
    if (!peer || !peer->is_open) continue;
    open.push_back(peer.get());
    const short events = static_cast<short>(peer->outbox.has_bytes() ? POLLIN | POLLOUT : POLLIN);
    descriptors.push_back({peer->socket(), events, 0});
  }
  if (poll_until(descriptors, deadline) <= 0) return false;
  if (descriptors[0].revents != 0) {
    std::uint64_t count = 0;
    (void)!::read(wake_event_.get(), &count, sizeof(count));
  }
  bool moved = false;
  for (std::size_t i = 0; i < open.size(); ++i) {
    const short events = descriptors[i + 1].revents;
    if ((events & POLLOUT) != 0 && open[i]->outbox.flush()) moved = true;
    if ((events & ~POLLOUT) != 0 && read(*open[i])) moved = true;
  }
  return moved;
}

bool Mesh::read(Peer& peer) {
  const Inbox::News news = peer.inbox.read();
  if (news.abort) {
    // Told on: who sees this rank's connection close must have read the reason before.
    abort(*news.abort);
  } else if (news.failure) {
    peer.fail(*news.failure);
  }
  return news.moved || news.failure;
}

void Mesh::tell_waiters() {
  wishes_.fetch_add(1);
  if (leader_sleeps_) {
    const std::uint64_t one = 1;
    (void)!::write(wake_event_.get(), &one, sizeof(one));
  }
  if (followers_ == 0) return;
  MutexLock lock(mutex_);
  changed_.notify_all();
}

void Mesh::abort(const Error& reason) noexcept {
  if (is_aborted_.exchange(true)) return;
  const Error aborted(ErrorCode::kAborted, reason.message());
  for (const auto& peer : peers_) {
    if (!peer) continue;
    if (peer->is_open) {
      peer->outbox.abort(aborted);
    } else {
      peer->outbox.fail(aborted);
    }
    peer->inbox.fail(aborted);
    peer->is_open = false;  // nothing more is read; what is left is written by flush_for
  }
  tell_waiters();
  flush_for(kLastWords);
}

void Mesh::flush_for(Duration duration) noexcept {
  const TimePoint end = deadline_after(Clock::system().now(), duration);
  for (;;) {
    std::vector<pollfd> descriptors;
    for (const auto& peer : peers_) {
      if (!peer || !peer->outbox.has_bytes()) continue;
      peer->outbox.flush();
      if (peer->outbox.has_bytes()) descriptors.push_back({peer->socket(), POLLOUT, 0});
    }
    if (descriptors.empty() || Clock::system().now() >= end) return;
    poll_until(descriptors, end);
  }
}

/// Closing a connection on which the peer still sends throws away what was not sent yet.
void Mesh::wait_until_sent(Duration duration) noexcept {
  Clock& clock = Clock::system();
  const TimePoint end = deadline_after(clock.now(), duration);
  for (const auto& peer : peers_) {
    int left = 0;
    while (peer && ::ioctl(peer->socket(), SIOCOUTQNSD, &left) == 0 && left > 0 &&
           clock.now() < end) {
      clock.sleep_for(std::chrono::milliseconds(1));
    }
  }
}

void Mesh::close() noexcept {
  flush_for(kLastWords);
  wait_until_sent(kLastWords);
  const Error closed(ErrorCode::kUnavailable,
                     concat("tcp: rank ", rank_, " has closed its transport"));
  for (const auto& peer : peers_) {
    if (!peer) continue;
    peer->fail(closed);
    ::shutdown(peer->socket(), SHUT_RDWR);
  }
  tell_waiters();
}

}  // namespace tutti::internal
