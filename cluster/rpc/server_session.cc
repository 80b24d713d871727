// Requests to the handler, answers to the client, whatever its connection does meanwhile.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/rpc/server_session.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "tutti/cluster/rpc/payload_memory.h"

namespace tutti::internal {
namespace {

/// So that it can be sent once more. Small payloads are copied: what keeps their bytes may keep
/// much more, and its owner may wait for nobody to need it.
std::shared_ptr<const RpcFrame> copy_to_keep(const RpcFrame& frame) {
  auto kept = std::make_shared<RpcFrame>();
  kept->kind = frame.kind;
  kept->code = frame.code;
  kept->call = frame.call;
  kept->packet.head = frame.packet.head;
  const std::size_t bytes = frame.packet.payload_bytes();
  if (bytes >= kSmallPayload) {
    kept->packet.payload = frame.packet.payload;
  } else if (bytes > 0) {
    kept->packet.payload = {copied(frame.packet.payload)};
  }
  return kept;
}

RpcFrame copy_to_send(const RpcFrame& kept) {
  RpcFrame frame;
  frame.kind = kept.kind;
  frame.code = kept.code;
  frame.call = kept.call;
  frame.packet = kept.packet;
  return frame;
}

}  // namespace

/// Room of the budget that a request takes until nobody needs its bytes.
class ServerSession::Lease {
 public:
  Lease(std::shared_ptr<ServerSession> session, std::size_t bytes)
      : session_(std::move(session)), bytes_(bytes) {}
  ~Lease() { session_->release(bytes_); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

 private:
  const std::shared_ptr<ServerSession> session_;
  const std::size_t bytes_;
};

class ServerSession::Call final : public RpcCall {
 public:
  Call(std::shared_ptr<ServerSession> session, RpcFrame frame)
      : session_(std::move(session)),
        number_(frame.call),
        request_(std::move(frame.packet)),
        lease_(std::move(frame.lease)) {}
  ~Call() override {
    try_to_fail(Error(ErrorCode::kInternal, "the call was dropped without an answer"));
  }

  const RpcPeer& peer() const override { return session_->peer(); }
  const Packet& request() const override { return request_; }
  void reply(Packet answer) override {
    check_unanswered();
    const std::size_t bytes = answer.payload_bytes();
    if (answer.head.size() > tutti::kLongestHead || bytes > session_->limits_.longest_payload) {
      try_to_fail(Error(ErrorCode::kResourceExhausted,
                        concat("an answer with ", answer.head.size(), " bytes of head and ", bytes,
                               " of payload; expected at most ", tutti::kLongestHead, " and ",
                               session_->limits_.longest_payload, "; ask for it in parts")));
      return;
    }
    RpcFrame frame;
    frame.kind = RpcFrame::Kind::kReply;
    frame.call = number_;
    frame.packet = std::move(answer);
    give(std::move(frame));
  }
  void fail(const Error& error) override {
    check_unanswered();
    try_to_fail(error);
  }
  void try_to_fail(const Error& error) { give(error_frame(number_, error)); }

 private:
  void give(RpcFrame frame) {
    if (is_answered_.exchange(true)) return;
    session_->answer(number_, std::move(frame));
    // Kept answers may keep this call; room for what the client sends before it acknowledges them
    // must not depend on that.
    lease_.reset();
  }
  void check_unanswered() const {
    if (!is_answered_) return;
    tutti::fail(ErrorCode::kFailedPrecondition, "RpcCall: the call of ", peer(),
                " has its answer; expected one answer per call");
  }

  const std::shared_ptr<ServerSession> session_;
  const std::uint64_t number_;
  const Packet request_;
  std::shared_ptr<void> lease_;  // until it is answered
  std::atomic<bool> is_answered_{false};
};

ServerSession::ServerSession(RpcHandler& handler, RpcPeer peer, const Limits& limits,
                             std::function<void()> on_change)
    : handler_(handler),
      peer_(std::move(peer)),
      limits_(limits),
      on_change_(std::move(on_change)),
      away_since_(Clock::system().now()) {}

ServerSession::~ServerSession() = default;

bool ServerSession::attach(const std::shared_ptr<RpcLink>& link,
                           std::span<const std::uint64_t> unanswered, RpcFrame welcome) {
  std::shared_ptr<RpcLink> previous;
  std::vector<Kept> dropped;
  {
    MutexLock lock(mutex_);
    if (is_leaving_ || is_ended_) return false;
    link->send(std::move(welcome));  // before any answer
    previous = std::exchange(link_, link);
    last_on_link_ = 0;
    is_short_ = false;
    away_since_.reset();
    std::vector<std::uint64_t> arrived;
    for (const KeptAnswer& answer : kept_) {
      if (!std::ranges::binary_search(unanswered, answer.call)) arrived.push_back(answer.call);
    }
    forget(arrived, dropped);
  }
  if (previous) previous->close();
  return true;
}

std::shared_ptr<void> ServerSession::lease(const RpcLink& link, std::size_t bytes) {
  MutexLock lock(mutex_);
  // One that is longer than all the room is taken when it is the only one.
  if (leased_ > 0 && leased_ + bytes > limits_.bytes) {
    is_short_ = is_short_ || link_.get() == &link;
    return nullptr;
  }
  leased_ += bytes;
  return std::make_shared<Lease>(shared_from_this(), bytes);
}

void ServerSession::release(std::size_t bytes) {
  std::shared_ptr<RpcLink> link;
  {
    MutexLock lock(mutex_);
    leased_ -= bytes;
    if (std::exchange(is_short_, false)) link = link_;
  }
  if (link) link->read_on();
}

void ServerSession::received(const RpcLink& link, RpcFrame frame) {
  switch (frame.kind) {
    case RpcFrame::Kind::kRequest:
      take_request(link, std::move(frame));
      return;
    case RpcFrame::Kind::kAcknowledge: {
      std::vector<Kept> dropped;
      MutexLock lock(mutex_);
      forget(frame.numbers, dropped);
      return;
    }
    case RpcFrame::Kind::kGoodBye:
      leave();
      return;
    case RpcFrame::Kind::kProbe:
      return_probe(link, std::move(frame));
      return;
    default:
      fail(ErrorCode::kDataLoss, "rpc: ", peer_, " sent a frame that no client sends");
  }
}

/// An answer that got lost is missed when this comes.
void ServerSession::return_probe(const RpcLink& link, RpcFrame frame) {
  std::shared_ptr<RpcLink> own;
  {
    MutexLock lock(mutex_);
    if (link_.get() == &link) own = link_;
  }
  if (own) own->send(std::move(frame));
}

void ServerSession::take_request(const RpcLink& link, RpcFrame frame) {
  std::vector<Kept> dropped;
  std::shared_ptr<RpcLink> link_of_answer;
  Kept answer;
  bool runs_here = false;
  {
    MutexLock lock(mutex_);
    if (link_.get() != &link || is_leaving_ || is_ended_) return;
    if (frame.call <= last_on_link_) {
      fail(ErrorCode::kDataLoss, "rpc: ", peer_, " sent call ", frame.call, " after call ",
           last_on_link_);
    }
    last_on_link_ = frame.call;
    forget(frame.numbers, dropped);
    const auto [place, is_new] = calls_.try_emplace(frame.call);
    if (is_new) {
      runs_here = !is_handing_ && queue_.empty() && link.may_run_handler() &&
                  frame.packet.payload_bytes() < kSmallPayload;
      queue_.push_back(std::make_shared<Call>(shared_from_this(), std::move(frame)));
      if (runs_here) is_handing_ = true;
      if (!runs_here) start_worker();
    } else if (place->second) {
      link_of_answer = link_;
      answer = place->second;
    }
  }
  if (answer) link_of_answer->send(copy_to_send(*answer));
  if (runs_here) (void)hand_next(false);
}

void ServerSession::forget(std::span<const std::uint64_t> calls, std::vector<Kept>& dropped) {
  for (const std::uint64_t call : calls) {
    const auto found = calls_.find(call);
    if (found == calls_.end() || !found->second) continue;
    dropped.push_back(std::move(found->second));  // owners of payloads run code of others
    calls_.erase(found);
    const auto kept = std::ranges::find(kept_, call, &KeptAnswer::call);
    kept_bytes_ -= kept->bytes;
    kept_.erase(kept);
  }
}

void ServerSession::keep(std::uint64_t call, const Kept& kept, std::vector<Kept>& dropped) {
  const std::size_t bytes = kept->packet.head.size() + kept->packet.payload_bytes();
  calls_[call] = kept;
  kept_.push_back({call, bytes});
  kept_bytes_ += bytes;
  while (kept_.size() > kMostCalls || (kept_bytes_ > limits_.bytes && kept_.size() > 1)) {
    forget(std::vector{kept_.front().call}, dropped);
  }
}

bool ServerSession::answers_may_get_lost() const {
  MutexLock lock(mutex_);
  return !is_ended_ && (!link_ || link_->can_break());
}

bool ServerSession::answer(std::uint64_t call, RpcFrame frame) {
  std::shared_ptr<RpcLink> link;
  std::vector<Kept> dropped;
  Kept kept;
  if (answers_may_get_lost()) kept = copy_to_keep(frame);
  {
    MutexLock lock(mutex_);
    const auto found = calls_.find(call);
    if (is_ended_ || found == calls_.end()) return false;
    link = link_;
    if (kept) {
      keep(call, kept, dropped);
    } else {
      calls_.erase(found);
    }
  }
  if (link) link->send(std::move(frame));
  return true;
}

void ServerSession::detach(const RpcLink& link) {
  {
    MutexLock lock(mutex_);
    if (link_.get() != &link) return;
    link_.reset();
    if (!is_leaving_) away_since_ = Clock::system().now();
  }
  on_change_();
}

std::optional<TimePoint> ServerSession::away_since() const {
  MutexLock lock(mutex_);
  return away_since_;
}

void ServerSession::leave() {
  MutexLock lock(mutex_);
  if (is_leaving_ || is_ended_) return;
  is_leaving_ = true;
  away_since_.reset();
  queue_.push_back(nullptr);
  start_worker();
}

bool ServerSession::has_left() const {
  MutexLock lock(mutex_);
  return has_left_;
}

void ServerSession::end() {
  std::deque<std::shared_ptr<Call>> queue;
  std::map<std::uint64_t, Kept> calls;
  std::shared_ptr<RpcLink> link;
  std::unique_ptr<Thread> worker;
  {
    MutexLock lock(mutex_);
    is_ended_ = true;
    queue.swap(queue_);
    calls.swap(calls_);
    link.swap(link_);
    worker.swap(worker_);
    kept_.clear();
    changed_.notify_all();
    changed_.wait_until(mutex_, TimePoint::max(),
                        [this]() TUTTI_REQUIRES(mutex_) { return !is_handing_; });
  }
  if (link) link->close();
  if (worker) worker->join();
}

void ServerSession::start_worker() {
  if (!worker_) worker_ = Executor::system().start("rpc-handler", [this] { work(); });
  changed_.notify_all();
}

void ServerSession::work() {
  for (;;) {
    {
      MutexLock lock(mutex_);
      changed_.wait_until(mutex_, TimePoint::max(), [this]() TUTTI_REQUIRES(mutex_) {
        return is_ended_ || (!is_handing_ && !queue_.empty());
      });
      if (is_ended_) return;
      is_handing_ = true;
    }
    while (hand_next(true)) {
    }
  }
}

/// With is_handing_ set; it stays so only where `goes_on` and there is more.
bool ServerSession::hand_next(bool goes_on) {
  std::shared_ptr<Call> call;
  {
    MutexLock lock(mutex_);
    const bool is_over = queue_.empty() || is_ended_;
    if (is_over) {
      is_handing_ = false;
      changed_.notify_all();
      return false;
    }
    call = std::move(queue_.front());
    queue_.pop_front();
  }
  hand(call);
  call.reset();  // unanswered and dropped: answered now
  if (goes_on) return true;
  MutexLock lock(mutex_);
  is_handing_ = false;
  if (!queue_.empty() && !is_ended_) start_worker();
  changed_.notify_all();
  return false;
}

void ServerSession::hand(const std::shared_ptr<Call>& call) {
  try {
    if (call) {
      handler_.take(call);
    } else {
      handler_.client_left(peer_);
    }
  } catch (const Error& error) {
    if (call) call->try_to_fail(error);
  } catch (const std::exception& error) {
    if (call) call->try_to_fail(Error(ErrorCode::kInternal, error.what()));
  }
  if (call) return;
  {
    MutexLock lock(mutex_);
    has_left_ = true;
  }
  on_change_();
}

}  // namespace tutti::internal
