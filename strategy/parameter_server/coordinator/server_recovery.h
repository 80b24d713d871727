// Takes cuts of all servers, and sees to it that one that was lost is back before work goes on.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "strategy/parameter_server/coordinator/closure_queue.h"
#include "strategy/parameter_server/coordinator/journal_file.h"
#include "strategy/parameter_server/coordinator/server_group.h"
#include "tutti/core/executor.h"
#include "tutti/strategy/parameter_server/coordinator/coordinator_options.h"

namespace tutti::internal {

/// Steps go on while a cut is taken: each server saves its values with its table, so that what is
/// done again finds there what it did before. When it cannot go on (a snapshot that counts is
/// damaged), the queue is stopped, and whoever waits for it gets the error. Threads: any, all
/// functions.
class ServerRecovery {
 public:
  /// All outlive it. The journal's ledger is the queue's already. Servers come back to what they
  /// have confirmed since the last cut; without any they save the first one. Throws as ServerGroup
  /// and JournalFile; kInvalidArgument for an interval of 0.
  ServerRecovery(ClosureQueue& queue, ServerGroup& servers, JournalFile& journal,
                 const SnapshotOptions& options);
  ~ServerRecovery();

  /// Its thread has ended. What comes later is left out.
  void stop();

  /// Whether all servers are there.
  bool may_give_out() const { return !is_troubled_.load(std::memory_order_acquire); }
  /// A closure ended.
  void note_end();
  /// A server's failure ended this attempt: it is voided if a server was lost, else put back.
  void put_back(const ClosureQueue::Handout& handout, AttemptReport report);
  /// Takes a cut now. Throws what kept it from that; kDeadlineExceeded; kCancelled after stop().
  void save_now(TimePoint deadline);

 private:
  using Failed = std::pair<ClosureQueue::Handout, AttemptReport>;

  void run();
  void wait_for_work();
  void recover();
  void begin_term(const std::string& why);
  void bring_back();
  std::optional<Error> try_cut();
  void take_cut();
  bool is_due() const;
  bool is_stopping() const;
  void give_up(const Error& error);

  ClosureQueue& queue_;
  ServerGroup& servers_;
  JournalFile& journal_;
  const SnapshotOptions options_;
  std::atomic<bool> is_troubled_{false};
  std::atomic<std::uint64_t> num_ended_{0};  // since the last cut began
  TimePoint next_cut_at_;                    // of the thread
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Failed> failed_ TUTTI_GUARDED_BY(mutex_);
  std::uint64_t num_wanted_ TUTTI_GUARDED_BY(mutex_) = 0;  // calls of save_now()
  std::uint64_t num_served_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::optional<Error> last_problem_ TUTTI_GUARDED_BY(mutex_);
  std::optional<Error> gave_up_ TUTTI_GUARDED_BY(mutex_);
  bool is_stopped_ TUTTI_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Thread> thread_;
};

}  // namespace tutti::internal
