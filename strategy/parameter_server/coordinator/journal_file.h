// The coordinator's journal on the disk: what a later coordinator goes on from.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/checkpoint/folder.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/coordinator/closure_ledger.h"
#include "tutti/strategy/parameter_server/protocol/checked_blocks.h"

namespace tutti::internal {

struct FoundJournal {
  std::string job_id = {};
  ClosureLedger ledger = ClosureLedger();
  std::uint64_t num_bytes = 0;  // without a last record that was being written
};
/// What a file of these bytes leads to. Throws kDataLoss naming path, offset, what was expected and
/// found.
FoundJournal read_journal_file(const std::string& path, std::span<const std::byte> file,
                               LedgerRules rules);
/// The head of a file that begins with this state; records may follow.
std::vector<std::byte> journal_head(const std::string& job_id, const ClosureLedger& ledger);
/// Magic and format.
FileKind journal_kind();

/// The file `journal` of a folder: a ledger's state in checked blocks (checked_blocks.h), with the
/// job's random name in their head, then the records of what happened since. What was appended
/// outlives the process; `sync_within` later at most it outlives a power cut, too. Threads: any.
class JournalFile {
 public:
  /// Reads what is there, cuts off a record at the end that was being written when the last
  /// process died (a warning says so), and goes on behind the rest; makes what is missing. Throws
  /// kFailedPrecondition while another coordinator has the folder, and for snapshots without a
  /// journal; kDataLoss naming path, offset, what was expected and found for other damage; errors
  /// of Folder.
  JournalFile(const std::string& folder, LedgerRules rules,
              Duration sync_within = std::chrono::milliseconds(5));
  ~JournalFile();
  JournalFile(const JournalFile&) = delete;
  JournalFile& operator=(const JournalFile&) = delete;

  /// 32 hexadecimal digits: also what the snapshots of its servers are marked with.
  const std::string& job_id() const { return job_id_; }
  /// What it led to when it was opened.
  const ClosureLedger& ledger() const { return ledger_; }

  /// Of encode_record(). When it throws (errors of Folder), nothing is appended any more.
  void append(std::span<const std::byte> record);
  /// All that was appended is on the disk.
  void sync();
  /// Makes the file short: it begins with this state, which all that was appended led to. Nothing
  /// is appended meanwhile.
  void begin_with(const ClosureLedger& ledger);
  /// Bytes of records in the file.
  std::uint64_t num_appended() const;

 private:
  void read(LedgerRules rules);
  void write_new(const ClosureLedger& ledger);
  void fail_if_broken() const TUTTI_REQUIRES(mutex_);
  void run();

  const Folder folder_;
  const Duration sync_within_;
  std::string job_id_;
  ClosureLedger ledger_;
  Mutex sync_mutex_;  // held while something is put on the disk; before mutex_
  mutable Mutex mutex_;
  CondVar changed_;
  std::optional<FileAppender> file_ TUTTI_GUARDED_BY(mutex_);  // changed with both held
  std::string why_broken_ TUTTI_GUARDED_BY(mutex_);
  std::uint64_t num_appended_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool has_unsynced_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_closing_ TUTTI_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Thread> thread_;
};

}  // namespace tutti::internal
