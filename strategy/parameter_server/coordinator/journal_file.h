// The coordinator's journal on the disk: what a later coordinator goes on from.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "checkpoint/folder.h"
#include "strategy/parameter_server/coordinator/closure_ledger.h"
#include "strategy/parameter_server/protocol/record_file.h"

namespace tutti::internal {

struct FoundJournal {
  std::string job_id = {};
  ClosureLedger ledger = ClosureLedger();
  std::uint64_t num_bytes = 0;  // without a last record that was being written
};
/// What a file of these bytes leads to. Throws kDataLoss naming path, offset, what was expected and
/// found.
FoundJournal read_journal_file(const std::string& path, std::uint64_t size,
                               RecordReader::Source source, LedgerRules rules);
/// Magic and format.
FileKind journal_kind();

/// The file `journal` of a folder (record_file.h): the job's random name as its head, a ledger's
/// state, then the events since. What was appended outlives the process; `sync_within` later at
/// most it outlives a power cut, too. Threads: any.
class JournalFile {
 public:
  /// Reads what is there, cuts off a record at the end that was being written when the last
  /// process died (a warning says so), and goes on behind the rest; makes what is missing. Throws
  /// kFailedPrecondition while another coordinator has the folder, and for snapshots without a
  /// journal; kDataLoss naming path, offset, what was expected and found for other damage; errors
  /// of Folder.
  JournalFile(const std::string& folder, LedgerRules rules,
              Duration sync_within = RecordLogOptions().sync_within);
  JournalFile(const JournalFile&) = delete;
  JournalFile& operator=(const JournalFile&) = delete;

  /// 32 hexadecimal digits: also what the snapshots of its servers are marked with.
  const std::string& job_id() const { return job_id_; }
  /// What it led to when it was opened.
  const ClosureLedger& ledger() const { return ledger_; }

  /// When it throws (errors of Folder), nothing is appended any more.
  void append(const ClosureEvent& event);
  /// All that was appended is on the disk.
  void sync() { log_.sync(); }
  /// Makes the file short: it begins with this state, which all that was appended led to. Nothing
  /// is appended meanwhile.
  void begin_with(const ClosureLedger& ledger);
  /// Bytes of events in the file.
  std::uint64_t num_appended() const { return log_.num_appended(); }

 private:
  void read(LedgerRules rules);

  const Folder folder_;
  std::string job_id_;
  ClosureLedger ledger_;
  RecordLog log_;
};

}  // namespace tutti::internal
