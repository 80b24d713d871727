// Batches go out in the order of their locks; whoever made them hears when the backup has them.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/server/backup_keeper.h"

#include <utility>

#include "tutti/strategy/parameter_server/protocol/encoding.h"
#include "tutti/strategy/parameter_server/server/backup_message.h"

namespace tutti::internal {

BackupKeeper::BackupKeeper(std::unique_ptr<RpcClient> backup, int server, std::uint64_t term,
                           Duration timeout, Duration patience)
    : backup_(std::move(backup)),
      server_(server),
      term_(term),
      timeout_(timeout),
      patience_(patience) {
  thread_ = Executor::system().start("ps-backup", [this] { run(); });
}

BackupKeeper::~BackupKeeper() {
  {
    const MutexLock lock(mutex_);
    is_ended_ = true;
    changed_.notify_all();
  }
  backup_->fail_all(Error(ErrorCode::kUnavailable, "the server ends, or has another copy"));
  thread_->join();
}

void BackupKeeper::begin_with(const StoreSnapshot& state) {
  state_reply_ =
      backup_->start(encode({BackupMessage::Kind::kState, server_, term_}, state_packet(state)));
}

void BackupKeeper::wait_for_state() {
  if (const auto problem = wait_for(*state_reply_)) throw *problem;
}

std::optional<Error> BackupKeeper::wait_for(RpcReply& reply) {
  try {
    (void)reply.wait(deadline_after(Clock::system().now(), timeout_));
    return std::nullopt;
  } catch (const Error& error) {
    // That it is not there is of another kind than that it refuses.
    const bool is_refused = error.code() == ErrorCode::kDataLoss;
    return Error(is_refused ? ErrorCode::kDataLoss : ErrorCode::kUnavailable,
                 concat("its backup does not confirm changes: ", error.message()));
  }
}

bool BackupKeeper::keep(const OperationBatch& batch, Kept kept) {
  Packet packet = encode({BackupMessage::Kind::kBatch, server_, term_}, encode(batch));
  const MutexLock lock(mutex_);
  if (has_given_up_) throw *problem_;
  sent_.push_back({problem_ ? nullptr : backup_->start(std::move(packet)), std::move(kept)});
  changed_.notify_all();
  return false;
}

void BackupKeeper::run() {
  for (;;) {
    Sent next;
    {
      const MutexLock lock(mutex_);
      changed_.wait_until(mutex_, TimePoint::max(),
                          [this]() TUTTI_REQUIRES(mutex_) { return is_ended_ || !sent_.empty(); });
      if (sent_.empty()) return;
      next = std::move(sent_.front());
      sent_.pop_front();
    }
    next.kept(outcome_of(next));
  }
}

std::optional<Error> BackupKeeper::outcome_of(const Sent& sent) {
  bool is_gone = false;
  {
    const MutexLock lock(mutex_);
    is_gone = problem_.has_value();
  }
  const auto problem = is_gone ? std::nullopt : wait_for(*sent.reply);
  if (!is_gone && !problem) return std::nullopt;
  const MutexLock lock(mutex_);
  if (problem) {
    problem_ = problem;
    const bool may_come_back = problem->code() == ErrorCode::kUnavailable;
    give_up_at_ =
        deadline_after(Clock::system().now(), may_come_back ? patience_ : Duration::zero());
  }
  (void)changed_.wait_until(
      mutex_, give_up_at_, [this]() TUTTI_REQUIRES(mutex_) { return is_ended_ || is_superseded_; });
  if (is_superseded_) return std::nullopt;
  has_given_up_ = true;
  return problem_;
}

void BackupKeeper::supersede() {
  const MutexLock lock(mutex_);
  is_superseded_ = true;
  changed_.notify_all();
}

}  // namespace tutti::internal
