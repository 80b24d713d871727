// Messages between threads: the sender or the receiver copies, whichever calls later.
// SPDX-License-Identifier: Apache-2.0
//
// A *channel* is the connection from one rank to another. A *transfer* is one side of a message, a
// send or a receive. It is *queued* on its channel until the other side posts the same tag. It is
// then *copying*: the channel's mutex is released, and no thread may end the transfer. Finally it
// is *ended*.
#include "cross_device_ops/in_process/in_process_transport.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <utility>

#include "core/names.h"
#include "cross_device_ops/shared/host_memory.h"
#include "tutti/core/sync.h"

namespace tutti {
namespace {

struct Transfer;

struct PeerChannel {
  using Queue = std::vector<Transfer*>;
  Mutex mutex;
  Queue sends TUTTI_GUARDED_BY(mutex);  // in call order
  Queue recvs TUTTI_GUARDED_BY(mutex);
  std::optional<Error> failure TUTTI_GUARDED_BY(mutex);
};

struct Counters {
  std::atomic<std::uint64_t> messages{0};
  std::atomic<std::uint64_t> bytes{0};
};

struct SharedState {
  SharedState(int size, bool shares_memory)
      : size(size),
        channels(size * size),
        counters(size),
        memory(shares_memory ? std::make_shared<HostMemory>() : nullptr) {}
  PeerChannel& channel(int from, int to) {
    return channels[static_cast<std::size_t>(from * size + to)];
  }

  const int size;
  std::vector<PeerChannel> channels;
  std::vector<Counters> counters;
  const std::shared_ptr<HostMemory> memory;
};

/// One side of a message, and its Work. The destructor waits while the other side copies.
struct Transfer final : Work {
  enum class State { kQueued, kCopying, kEnded };

  Transfer(std::shared_ptr<SharedState> all, int sender, int receiver, bool sends,
           std::uint64_t name, std::span<std::byte> first, std::span<std::byte> rest)
      : group(std::move(all)),
        from(sender),
        to(receiver),
        is_send(sends),
        tag(name),
        head(first),
        body(rest),
        channel(group->channel(from, to)) {}
  ~Transfer() override {
    MutexLock lock(channel.mutex);
    if (state == State::kQueued) {
      std::erase(is_send ? channel.sends : channel.recvs, this);
    } else {  // the other side is copying this memory
      wait_for_end(TimePoint::max());
    }
  }

  bool test() override {
    MutexLock lock(channel.mutex);
    return has_ended();
  }

  void wait(TimePoint deadline) override {
    MutexLock lock(channel.mutex);
    wait_for_end(deadline);
    if (has_ended()) return;
    fail(ErrorCode::kDeadlineExceeded, "in_process: rank ", is_send ? to : from,
         is_send ? " did not receive" : " did not send", " the message with tag ", tag,
         " (body of ", body.size(), " bytes) before the deadline of rank ", is_send ? from : to);
  }

  /// Requires: the channel's mutex held.
  void end(std::optional<Error> reason = std::nullopt) {
    state = State::kEnded;
    error = std::move(reason);
    ended.notify_all();
  }
  void wait_for_end(TimePoint deadline) TUTTI_REQUIRES(channel.mutex) {
    ended.wait_until(channel.mutex, deadline, [this] { return state == State::kEnded; });
  }
  bool has_ended() const {
    if (state != State::kEnded) return false;
    if (error) throw *error;
    return true;
  }

  const std::shared_ptr<SharedState> group;
  const int from, to;
  const bool is_send;
  const std::uint64_t tag;
  const std::span<std::byte> head, body;  // read-only for a send
  PeerChannel& channel;
  // Guarded by the channel's mutex.
  State state = State::kQueued;
  std::optional<Error> error;
  CondVar ended;
};

Transfer* take_first(PeerChannel::Queue& queue, std::uint64_t tag) {
  const auto found = std::ranges::find(queue, tag, [](const Transfer* t) { return t->tag; });
  if (found == queue.end()) return nullptr;
  Transfer* const transfer = *found;
  queue.erase(found);
  return transfer;
}

void copy_bytes(std::span<const std::byte> from, std::span<std::byte> to) {
  const std::size_t bytes = std::min(from.size(), to.size());
  if (bytes > 0) std::memcpy(to.data(), from.data(), bytes);
}

std::optional<Error> copy(const Transfer& send, const Transfer& recv) {
  copy_bytes(send.head, recv.head);
  if (send.head.size() == recv.head.size() && send.body.size() == recv.body.size()) {
    copy_bytes(send.body, recv.body);
    return std::nullopt;
  }
  return Error(ErrorCode::kInvalidArgument,
               concat("in_process: the message from rank ", send.from, " to rank ", send.to,
                      " with tag ", send.tag, " has the wrong length; expected head and body of ",
                      recv.head.size(), " and ", recv.body.size(), " bytes, got ", send.head.size(),
                      " and ", send.body.size()));
}

class InProcessTransport final : public Transport {
 public:
  InProcessTransport(std::shared_ptr<SharedState> group, int rank)
      : group_(std::move(group)), rank_(rank) {}

  ~InProcessTransport() override {
    const Error gone(ErrorCode::kUnavailable, concat("in_process: rank ", rank_,
                                                     " has exited: its transport was destroyed"));
    for (int peer = 0; peer < group_->size; ++peer) {
      close(group_->channel(rank_, peer), gone);
      close(group_->channel(peer, rank_), gone);
    }
  }

  int rank() const override { return rank_; }
  int size() const override { return group_->size; }
  std::string_view name() const override { return "in_process"; }
  bool spans_processes() const override { return false; }

  std::unique_ptr<Work> send(int peer, std::uint64_t tag, std::span<const std::byte> head,
                             std::span<const std::byte> body) override {
    return post(rank_, peer, true, tag, only_read(head), only_read(body));
  }

  std::unique_ptr<Work> recv(int peer, std::uint64_t tag, std::span<std::byte> head,
                             std::span<std::byte> body) override {
    return post(peer, rank_, false, tag, head, body);
  }

  void abort(const Error& reason) noexcept override {
    const Error aborted(ErrorCode::kAborted, reason.message());
    for (PeerChannel& channel : group_->channels) close(channel, aborted);
  }

  std::shared_ptr<HostMemory> host_memory() override { return group_->memory; }

  TransportStats stats() const override {
    const Counters& mine = group_->counters[static_cast<std::size_t>(rank_)];
    return {mine.messages.load(), mine.bytes.load()};
  }

 private:
  static void close(PeerChannel& channel, const Error& reason) {
    MutexLock lock(channel.mutex);
    if (!channel.failure) channel.failure = reason;
    for (PeerChannel::Queue* const queue : {&channel.sends, &channel.recvs}) {
      for (Transfer* const transfer : *queue) transfer->end(channel.failure);
      queue->clear();
    }
  }

  void check(int peer, std::size_t num_head_bytes) const {
    internal::require(peer >= 0 && peer < group_->size && peer != rank_, "in_process: rank ", rank_,
                      ": expected a peer from 0 to ", group_->size - 1,
                      " other than this rank, got ", peer);
    internal::require(num_head_bytes <= 256, "in_process: rank ", rank_,
                      ": expected a message head of at most 256 bytes, got ", num_head_bytes);
  }

  static std::span<std::byte> only_read(std::span<const std::byte> bytes) {
    return {const_cast<std::byte*>(bytes.data()), bytes.size()};
  }

  std::unique_ptr<Work> post(int from, int to, bool is_send, std::uint64_t tag,
                             std::span<std::byte> head, std::span<std::byte> body) {
    check(is_send ? to : from, head.size());
    auto work = std::make_unique<Transfer>(group_, from, to, is_send, tag, head, body);
    if (Transfer* const other = match(*work)) {
      is_send ? deliver(*work, *other) : deliver(*other, *work);
    }
    return work;
  }

  /// If the peer's matching transfer is queued, returns it and marks both as copying; otherwise
  /// returns nullptr.
  static Transfer* match(Transfer& transfer) {
    PeerChannel& channel = transfer.channel;
    MutexLock lock(channel.mutex);
    if (channel.failure) {
      transfer.end(channel.failure);
      return nullptr;
    }
    Transfer* const other =
        take_first(transfer.is_send ? channel.recvs : channel.sends, transfer.tag);
    if (!other) {
      (transfer.is_send ? channel.sends : channel.recvs).push_back(&transfer);
      return nullptr;
    }
    transfer.state = other->state = Transfer::State::kCopying;
    return other;
  }

  void deliver(Transfer& send, Transfer& recv) {
    const std::optional<Error> mismatch = copy(send, recv);
    Counters& sender = group_->counters[static_cast<std::size_t>(send.from)];
    sender.messages.fetch_add(1);
    sender.bytes.fetch_add(send.head.size() + send.body.size());
    MutexLock lock(send.channel.mutex);
    recv.end(mismatch);
    send.end();
  }

  std::shared_ptr<SharedState> group_;
  const int rank_;
};

}  // namespace

std::vector<std::shared_ptr<Transport>> in_process_transports(int size, bool shares_memory) {
  internal::require(size > 0, "in_process_transports: expected a size >= 1, got ", size);
  const auto group = std::make_shared<SharedState>(size, shares_memory);
  std::vector<std::shared_ptr<Transport>> transports;
  for (int rank = 0; rank < size; ++rank) {
    transports.push_back(std::make_shared<InProcessTransport>(group, rank));
  }
  return transports;
}

}  // namespace tutti
