// Batches go out in the order of their locks; whoever made them hears when the backup has them.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/server/backup_keeper.h"

#include <utility>

#include "tutti/strategy/parameter_server/protocol/encoding.h"
#include "tutti/strategy/parameter_server/server/backup_message.h"

namespace tutti::internal {

BackupKeeper::BackupKeeper(std::unique_ptr<RpcClient> backup, int server, std::uint64_t term,
                           Duration timeout)
    : backup_(std::move(backup)), server_(server), term_(term), timeout_(timeout) {
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
    return Error(ErrorCode::kUnavailable,
                 concat("its backup does not confirm changes: ", error.message()));
  }
}

bool BackupKeeper::keep(const OperationBatch& batch, Kept kept) {
  Packet packet = encode({BackupMessage::Kind::kBatch, server_, term_}, encode(batch));
  const MutexLock lock(mutex_);
  if (problem_) throw *problem_;
  sent_.push_back({backup_->start(std::move(packet)), std::move(kept)});
  changed_.notify_all();
  return false;
}

void BackupKeeper::run() {
  for (;;) {
    Sent next;
    std::optional<Error> problem;
    {
      const MutexLock lock(mutex_);
      changed_.wait_until(mutex_, TimePoint::max(),
                          [this]() TUTTI_REQUIRES(mutex_) { return is_ended_ || !sent_.empty(); });
      if (sent_.empty()) return;
      next = std::move(sent_.front());
      sent_.pop_front();
      problem = problem_;
    }
    if (!problem) problem = wait_for(*next.reply);
    if (problem) {
      const MutexLock lock(mutex_);
      problem_ = problem;
    }
    next.kept(problem);
  }
}

}  // namespace tutti::internal
