// Leaders and followers: coordination of the threads that move bytes.
// SPDX-License-Identifier: Apache-2.0
//
// No thread may sleep through the end of its operation. A follower increments followers_ before it
// checks whether its operation has ended; the thread that ends an operation does so before it reads
// followers_. Both operations are sequentially consistent, so at least one of the threads sees the
// other's operation. Likewise the leader sets leader_sleeps_ before it reads wishes_ a last time,
// and other threads increment wishes_ before they read leader_sleeps_.
#include "cluster/net/mesh.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/run_token.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/executor.h"
#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

using durations::kLastWords, durations::kLinger, durations::kSpin, durations::kYield;

}  // namespace

/// Scope in which this thread is the mesh's leader. The leadership also ends on exceptions.
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

Mesh::Mesh(int rank, std::vector<ConnectedPeer> peers, MeshOptions options)
    : rank_(rank),
      options_(std::move(options)),
      spins_(1 + std::ranges::count(peers, true, &ConnectedPeer::is_on_this_machine) <=
             num_hardware_threads()),
      kept_(options_.bytes_kept),
      peers_(peers.size()),
      is_looked_at_(peers.size()),
      wake_event_(make_wake_event()) {
  for (std::size_t r = 0; r < peers.size(); ++r) {
    if (static_cast<int>(r) == rank) continue;
    ConnectedPeer& peer = peers[r];
    peers_[r] = std::make_unique<Connection>(
        std::move(peer.socket),
        concat(peer.is_local ? "shm" : "tcp", ": rank ", r, " (", peer.address, ")"), peer.is_local,
        kept_);
  }
}

template <class Side>
class Mesh::MessageWork final : public Work {
 public:
  MessageWork(std::shared_ptr<Mesh> mesh, int peer, std::shared_ptr<Side> side)
      : mesh_(std::move(mesh)), peer_(peer), side_(std::move(side)) {}

  ~MessageWork() override {
    if (!side_->has_ended()) mesh_->peer(peer_).cancel(side_);
  }

  bool test() override {
    if (!side_->has_ended()) mesh_->test(*side_, peer_);
    return has_ended();
  }

  void wait(TimePoint deadline) override {
    mesh_->wait(*side_, peer_, deadline);
    if (has_ended()) return;
    fail(ErrorCode::kDeadlineExceeded, mesh_->peer(peer_).peer(),
         std::is_same_v<Side, Outgoing> ? " did not receive" : " did not send",
         " the message with tag ", side_->tag, " (body of ", side_->body_bytes,
         " bytes) before the deadline of rank ", mesh_->rank());
  }

 private:
  bool has_ended() const {
    if (!side_->has_ended()) return false;
    if (side_->error()) throw *side_->error();
    return true;
  }

  std::shared_ptr<Mesh> mesh_;
  const int peer_;
  std::shared_ptr<Side> side_;
};

void Mesh::check(int peer, std::size_t head_bytes, std::size_t body_bytes) const {
  if (peer < 0 || peer >= size() || peer == rank_) {
    fail(ErrorCode::kInvalidArgument, name(), ": rank ", rank_, ": expected a peer from 0 to ",
         size() - 1, " other than this rank, got ", peer);
  }
  if (head_bytes > kLongestHead || body_bytes > kLongestBody) {
    fail(ErrorCode::kInvalidArgument, name(), ": rank ", rank_,
         ": expected a message with at most ", kLongestHead, " head bytes and ", kLongestBody,
         " body bytes, got ", head_bytes, " and ", body_bytes);
  }
}

std::unique_ptr<Work> Mesh::send(int peer, std::uint64_t tag, std::span<const std::byte> head,
                                 std::span<const std::byte> body) {
  check(peer, head.size(), body.size());
  const FrameHeader header{FrameHeader::Kind::kMessage, static_cast<std::uint16_t>(head.size()),
                           tag, body.size()};
  auto message = std::make_shared<Outgoing>(header, head, body);
  auto work = std::make_unique<MessageWork<Outgoing>>(shared_from_this(), peer, message);
  if (!this->peer(peer).send(message)) wake_waiters();
  return work;
}

std::unique_ptr<Work> Mesh::recv(int peer, std::uint64_t tag, std::span<std::byte> head,
                                 std::span<std::byte> body) {
  check(peer, head.size(), body.size());
  auto receiver = std::make_shared<Incoming>();
  receiver->tag = tag;
  receiver->body_bytes = body.size();
  receiver->head = head;
  receiver->body = body;
  auto work = std::make_unique<MessageWork<Incoming>>(shared_from_this(), peer, receiver);
  this->peer(peer).receive(receiver);
  return work;
}
TransportStats Mesh::stats() const {
  TransportStats sum;
  for (const auto& peer : peers_) {
    if (!peer) continue;
    const TransportStats of_peer = peer->stats();
    sum.messages_sent += of_peer.messages_sent;
    sum.bytes_sent += of_peer.bytes_sent;
  }
  return sum;
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
  // A thread may test operations with many peers in turn, so poll all peers in one system call.
  if (size() > 2 && Clock::system().now() >= look_again_) {
    poll_peers(TimePoint::min());
    look_again_ = deadline_after(Clock::system().now(), kSpin);
    is_looked_at_.assign(peers_.size(), true);
  }
  if (!std::exchange(is_looked_at_[static_cast<std::size_t>(peer)], std::uint8_t{0})) {
    read_from_peer(peer);
  }
}

bool Mesh::may_spin() const {
  static const int cores = num_hardware_threads();
  return spins_ && num_awake_threads() + 1 <= cores && !BlockedScope::current_thread_holds_token();
}

/// Returns true if a thread that may not spin should yield its core before it polls again, because
/// the rank that it is waiting for often needs this core.
bool Mesh::may_yield() { return !BlockedScope::current_thread_holds_token(); }

void Mesh::lead(const Operation& operation, int peer, TimePoint deadline) {
  Clock& clock = Clock::system();
  for (TimePoint idle_since = clock.now();;) {
    const std::uint64_t seen = wishes_.load();
    bool moved = read_from_peer(peer) || (size() > 2 && poll_peers(TimePoint::min()));
    const TimePoint now = clock.now();
    if (!moved && !operation.has_ended() && now < deadline) {
      if (now - idle_since < kSpin && may_spin()) continue;
      if (now - idle_since < kYield && may_yield()) {
        ::sched_yield();
        continue;
      }
      leader_sleeps_ = true;
      moved = wishes_ == seen && !operation.has_ended() && poll_peers(deadline);
      leader_sleeps_ = false;
    }
    if (moved && followers_ > 0) wake_waiters();
    if (operation.has_ended() || now >= deadline) return;
    idle_since = clock.now();
  }
}

/// Reads from one peer without calling poll() first.
bool Mesh::read_from_peer(int rank) {
  Connection& peer = this->peer(rank);
  if (!peer.is_open()) return false;
  const Connection::IoResult result = peer.move();
  if (result.abort) {
    // Forward the abort: a rank must have read the reason before it sees this rank's connection
    // close.
    abort(*result.abort);
  } else if (result.failure) {
    int no_rank = kNone;
    if (!is_aborted_) lost_peer_.compare_exchange_strong(no_rank, rank);
    peer.fail(*result.failure);
    // Reset the connection, because the peer may not know of the failure: only this side detects a
    // damaged message.
    peer.reset();
  }
  return result.moved || result.failure;
}

/// Polls all peers. Waits until a peer is ready or the deadline passes, but at most one second.
bool Mesh::poll_peers(TimePoint deadline) {
  std::vector<pollfd> descriptors{{wake_event_.get(), POLLIN, 0}};
  for (const auto& peer : peers_) {
    const bool is_watched = peer && peer->is_open();
    descriptors.push_back(is_watched ? peer->watched() : pollfd{-1, 0, 0});  // poll() ignores -1
  }
  const bool sleeps = deadline != TimePoint::min();
  if (sleeps) {
    deadline =
        std::min(deadline, deadline_after(Clock::system().now(), durations::kLinkSilence / 7));
  }
  if (poll_until(descriptors, deadline) == 0 && sleeps) {
    const TimePoint now = Clock::system().now();
    for (const auto& peer : peers_) {
      if (peer && peer->is_open()) peer->check_silence(now);
    }
  }
  if (descriptors[0].revents != 0) {
    std::uint64_t count = 0;
    (void)!::read(wake_event_.get(), &count, sizeof(count));
  }
  bool moved = false;
  for (int rank = 0; rank < size(); ++rank) {
    const bool is_ready = descriptors[static_cast<std::size_t>(rank) + 1].revents != 0;
    if (is_ready && read_from_peer(rank)) moved = true;
  }
  return moved;
}

std::optional<int> Mesh::lost_peer() const {
  const int peer = lost_peer_;
  return peer == kNone ? std::nullopt : std::optional(peer);
}

void Mesh::wake_waiters() {
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
    if (peer) peer->abort(aborted);  // flush_aborts() writes the rest
  }
  wake_waiters();
  flush_aborts();
}

/// Flushes the abort messages while peers keep reading, for at most kLinger.
void Mesh::flush_aborts() noexcept {
  const TimePoint begin = Clock::system().now();
  const TimePoint last = deadline_after(begin, kLinger);
  TimePoint end = deadline_after(begin, kLastWords);
  for (;;) {
    std::vector<pollfd> descriptors;
    bool moved = false;
    for (const auto& peer : peers_) {
      if (!peer || !peer->has_bytes()) continue;
      if (peer->flush()) moved = true;
      if (!peer->has_bytes()) continue;
      descriptors.push_back(peer->watched());
      // Bytes from peers are no longer read, so they must not wake this thread.
      descriptors.back().events = POLLOUT;
    }
    const TimePoint now = Clock::system().now();
    if (moved) end = std::min(last, deadline_after(now, kLastWords));
    if (descriptors.empty() || now >= end) return;
    const TimePoint nap_end = moved ? now : deadline_after(now, std::chrono::milliseconds(1));
    poll_until(descriptors, std::min(end, nap_end));
  }
}

/// Waits at most `duration` until the operating systems of all peers have received all bytes,
/// because bytes in transit could be lost when this process exits.
void Mesh::wait_until_sent(Duration duration) noexcept {
  Clock& clock = Clock::system();
  const TimePoint end = deadline_after(clock.now(), duration);
  for (const auto& peer : peers_) {
    while (peer && peer->is_open() && peer->has_unsent() && clock.now() < end) {
      clock.sleep_for(std::chrono::milliseconds(1));
    }
  }
}

void Mesh::close() noexcept {
  flush_aborts();
  wait_until_sent(is_aborted_ ? kLastWords : kLinger);
  const Error closed(ErrorCode::kUnavailable, concat("rank ", rank_, " has closed its transport"));
  for (const auto& peer : peers_) {
    if (!peer) continue;
    peer->fail(closed);
    peer->close();
  }
  wake_waiters();
}

std::shared_ptr<Transport> shared_mesh(int rank, std::vector<ConnectedPeer> peers,
                                       MeshOptions options) {
  const auto mesh = std::make_shared<Mesh>(rank, std::move(peers), std::move(options));
  return std::shared_ptr<Transport>(static_cast<Transport*>(mesh.get()),
                                    [mesh](Transport*) { mesh->close(); });
}

}  // namespace tutti::internal
