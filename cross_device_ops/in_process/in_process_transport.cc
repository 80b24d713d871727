// Messages between threads: who comes second copies.
// SPDX-License-Identifier: Apache-2.0
//
// A *lane* is the way from one rank to another. A *transfer* is one side of a message, a send or a
// receive; on its lane it is queued until the other side of the same tag comes, then copying (with
// the lane's mutex released, hence nobody may end it meanwhile), then ended.
#include "cross_device_ops/in_process/in_process_transport.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <utility>

#include "tutti/core/sync.h"

namespace tutti {
namespace {

struct Transfer {
  enum class State { kQueued, kCopying, kEnded };

  std::uint64_t tag = 0;
  std::span<std::byte> head, body;  // of a send: only read
  // Guarded by the lane's mutex.
  State state = State::kQueued;
  std::optional<Error> error;
  CondVar ended;

  void end(std::optional<Error> reason = std::nullopt) {
    state = State::kEnded;
    error = std::move(reason);
    ended.notify_all();
  }
};
using Queue = std::vector<std::shared_ptr<Transfer>>;

struct Lane {
  Mutex mutex;
  Queue sends TUTTI_GUARDED_BY(mutex);  // in the order of calling
  Queue recvs TUTTI_GUARDED_BY(mutex);
  std::optional<Error> failure TUTTI_GUARDED_BY(mutex);

  void fail_queued(const Error& reason) TUTTI_REQUIRES(mutex) {
    if (!failure) failure = reason;
    for (const auto& transfer : sends) transfer->end(failure);
    for (const auto& transfer : recvs) transfer->end(failure);
    sends.clear();
    recvs.clear();
  }
};

struct Counters {
  std::atomic<std::uint64_t> messages{0};
  std::atomic<std::uint64_t> bytes{0};
};

struct Hub {
  explicit Hub(int size) : size(size), lanes(size * size), counters(size) {}
  Lane& lane(int from, int to) { return lanes[static_cast<std::size_t>(from * size + to)]; }

  const int size;
  std::vector<Lane> lanes;
  std::vector<Counters> counters;
};

std::shared_ptr<Transfer> take_first(Queue& queue, std::uint64_t tag) {
  const auto found = std::ranges::find(queue, tag, [](const auto& t) { return t->tag; });
  if (found == queue.end()) return nullptr;
  std::shared_ptr<Transfer> transfer = std::move(*found);
  queue.erase(found);
  return transfer;
}

void copy_bytes(std::span<const std::byte> from, std::span<std::byte> to) {
  const std::size_t bytes = std::min(from.size(), to.size());
  if (bytes > 0) std::memcpy(to.data(), from.data(), bytes);
}

std::optional<Error> copy(const Transfer& send, const Transfer& recv, int from, int to) {
  copy_bytes(send.head, recv.head);
  if (send.head.size() == recv.head.size() && send.body.size() == recv.body.size()) {
    copy_bytes(send.body, recv.body);
    return std::nullopt;
  }
  return Error(
      ErrorCode::kInvalidArgument,
      concat("in_process: the message of rank ", from, " to rank ", to, " with tag ", send.tag,
             " has another length; expected head and body of ", recv.head.size(), " and ",
             recv.body.size(), " bytes, got ", send.head.size(), " and ", send.body.size()));
}

class InProcessWork final : public Work {
 public:
  InProcessWork(std::shared_ptr<Hub> hub, int from, int to, bool is_send,
                std::shared_ptr<Transfer> transfer)
      : hub_(std::move(hub)),
        lane_(hub_->lane(from, to)),
        from_(from),
        to_(to),
        is_send_(is_send),
        transfer_(std::move(transfer)) {}

  ~InProcessWork() override {
    MutexLock lock(lane_.mutex);
    if (transfer_->state == Transfer::State::kQueued) {
      std::erase(is_send_ ? lane_.sends : lane_.recvs, transfer_);
    } else {  // the other side copies at this moment: memory is in use until it has
      wait_for_end(TimePoint::max());
    }
  }

  bool test() override {
    MutexLock lock(lane_.mutex);
    return has_ended();
  }

  void wait(TimePoint deadline) override {
    MutexLock lock(lane_.mutex);
    wait_for_end(deadline);
    if (has_ended()) return;
    fail(ErrorCode::kDeadlineExceeded, "in_process: rank ", is_send_ ? to_ : from_,
         is_send_ ? " has not received" : " has not sent", " the message with tag ", transfer_->tag,
         " (body of ", transfer_->body.size(), " bytes) before the deadline of rank ",
         is_send_ ? from_ : to_);
  }

 private:
  void wait_for_end(TimePoint deadline) TUTTI_REQUIRES(lane_.mutex) {
    transfer_->ended.wait_until(lane_.mutex, deadline,
                                [this] { return transfer_->state == Transfer::State::kEnded; });
  }
  bool has_ended() const {
    if (transfer_->state != Transfer::State::kEnded) return false;
    if (transfer_->error) throw *transfer_->error;
    return true;
  }

  std::shared_ptr<Hub> hub_;
  Lane& lane_;
  const int from_;
  const int to_;
  const bool is_send_;
  std::shared_ptr<Transfer> transfer_;
};

class InProcessTransport final : public Transport {
 public:
  InProcessTransport(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

  ~InProcessTransport() override {
    const Error gone(ErrorCode::kUnavailable,
                     concat("in_process: rank ", rank_, " is gone: its transport was destroyed"));
    for (int peer = 0; peer < hub_->size; ++peer) {
      close(hub_->lane(rank_, peer), gone);
      close(hub_->lane(peer, rank_), gone);
    }
  }

  int rank() const override { return rank_; }
  int size() const override { return hub_->size; }
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
    for (Lane& lane : hub_->lanes) close(lane, aborted);
  }

  TransportStats stats() const override {
    const Counters& mine = hub_->counters[static_cast<std::size_t>(rank_)];
    return {mine.messages.load(), mine.bytes.load()};
  }

 private:
  static void close(Lane& lane, const Error& reason) {
    MutexLock lock(lane.mutex);
    lane.fail_queued(reason);
  }

  void check(int peer, std::size_t num_head_bytes) const {
    if (peer < 0 || peer >= hub_->size || peer == rank_) {
      fail(ErrorCode::kInvalidArgument, "in_process: rank ", rank_, " names the peer ", peer,
           "; expected another rank from 0 to ", hub_->size - 1);
    }
    if (num_head_bytes > 256) {
      fail(ErrorCode::kInvalidArgument, "in_process: rank ", rank_,
           ": the head of a message; expected at most 256 bytes, got ", num_head_bytes);
    }
  }

  static std::span<std::byte> only_read(std::span<const std::byte> bytes) {
    return {const_cast<std::byte*>(bytes.data()), bytes.size()};
  }

  std::unique_ptr<Work> post(int from, int to, bool is_send, std::uint64_t tag,
                             std::span<std::byte> head, std::span<std::byte> body) {
    check(is_send ? to : from, head.size());
    auto transfer = std::make_shared<Transfer>();
    transfer->tag = tag;
    transfer->head = head;
    transfer->body = body;
    auto work = std::make_unique<InProcessWork>(hub_, from, to, is_send, transfer);
    if (const auto other = match(hub_->lane(from, to), is_send, transfer)) {
      is_send ? deliver(from, to, *transfer, *other) : deliver(from, to, *other, *transfer);
    }
    return work;
  }

  /// The other side, if it is there: then both are copying.
  static std::shared_ptr<Transfer> match(Lane& lane, bool is_send,
                                         const std::shared_ptr<Transfer>& transfer) {
    MutexLock lock(lane.mutex);
    if (lane.failure) {
      transfer->end(lane.failure);
      return nullptr;
    }
    auto other = take_first(is_send ? lane.recvs : lane.sends, transfer->tag);
    if (!other) {
      (is_send ? lane.sends : lane.recvs).push_back(transfer);
      return nullptr;
    }
    transfer->state = other->state = Transfer::State::kCopying;
    return other;
  }

  void deliver(int from, int to, Transfer& send, Transfer& recv) {
    const std::optional<Error> mismatch = copy(send, recv, from, to);
    Counters& sender = hub_->counters[static_cast<std::size_t>(from)];
    sender.messages.fetch_add(1);
    sender.bytes.fetch_add(send.head.size() + send.body.size());
    MutexLock lock(hub_->lane(from, to).mutex);
    recv.end(mismatch);
    send.end();
  }

  std::shared_ptr<Hub> hub_;
  const int rank_;
};

}  // namespace

std::vector<std::shared_ptr<Transport>> in_process_transports(int size) {
  if (size < 1) {
    fail(ErrorCode::kInvalidArgument, "in_process_transports: expected a size of 1 or more, got ",
         size);
  }
  const auto hub = std::make_shared<Hub>(size);
  std::vector<std::shared_ptr<Transport>> transports;
  for (int rank = 0; rank < size; ++rank) {
    transports.push_back(std::make_shared<InProcessTransport>(hub, rank));
  }
  return transports;
}

}  // namespace tutti
