// Batches go out in the order of their locks; whoever made them hears when the backup has them.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/server/backup_keeper.h"

#include <algorithm>
#include <utility>

#include "tutti/cluster/control/health_rules.h"
#include "tutti/strategy/parameter_server/protocol/encoding.h"
#include "tutti/strategy/parameter_server/server/backup_message.h"

namespace tutti::internal {
namespace {

/// Without a connection; a break of a moment is nobody's business.
constexpr Duration kAwayForLong = std::chrono::seconds(1);
/// With one: a batch of gigabytes takes its time.
constexpr Duration kSilentForLong = std::chrono::seconds(30);
/// Of the state that a copy begins with: whoever ordered it tries again.
constexpr Duration kAwayFromState = std::chrono::seconds(2);

TimePoint now() { return Clock::system().now(); }

}  // namespace

BackupKeeper::BackupKeeper(std::shared_ptr<RpcClient> backup, int server, std::uint64_t term,
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

/// Wakes for the answer, or when it is time to ask for how long there has been no connection.
void BackupKeeper::wait_for_state() {
  const TimePoint end = deadline_after(now(), timeout_);
  for (;;) {
    const auto away_since = backup_->away_since();
    const TimePoint look_at = deadline_after(away_since.value_or(now()), kAwayFromState);
    if (state_reply_->wait_until_ready(std::min(look_at, end)) || now() >= end) break;
    if (away_since && away_since == backup_->away_since()) {
      fail(ErrorCode::kUnavailable, backup_->server_name(), ": ",
           backup_->why_away().value_or("it was away for too long"));
    }
  }
  if (const auto problem = wait_for(*state_reply_, end)) throw *problem;
}

std::optional<std::string> BackupKeeper::trouble() const {
  const auto away = backup_->why_away();
  const MutexLock lock(mutex_);
  if (!waits_since_ || is_superseded_) return std::nullopt;
  const Duration waited = now() - *waits_since_;
  const bool is_long = problem_ || waited >= (away ? kAwayForLong : kSilentForLong);
  if (!is_long) return std::nullopt;
  return concat(backup_->server_name(), ", which keeps its copy, has not confirmed changes for ",
                seconds_text(waited),
                " s: ", problem_ ? problem_->message() : away.value_or("it does not answer"));
}

std::optional<Error> BackupKeeper::wait_for(RpcReply& reply, TimePoint deadline) {
  try {
    (void)reply.wait(deadline);
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
      waits_since_ = now();
    }
    const auto outcome = outcome_of(next);
    {
      const MutexLock lock(mutex_);
      waits_since_.reset();
    }
    next.kept(outcome);
  }
}

std::optional<Error> BackupKeeper::outcome_of(const Sent& sent) {
  bool is_gone = false;
  {
    const MutexLock lock(mutex_);
    is_gone = problem_.has_value();
  }
  const auto problem =
      is_gone ? std::nullopt : wait_for(*sent.reply, deadline_after(now(), timeout_));
  if (!is_gone && !problem) return std::nullopt;
  const MutexLock lock(mutex_);
  if (problem) {
    problem_ = problem;
    const bool may_come_back = problem->code() == ErrorCode::kUnavailable;
    give_up_at_ = deadline_after(now(), may_come_back ? patience_ : Duration::zero());
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
