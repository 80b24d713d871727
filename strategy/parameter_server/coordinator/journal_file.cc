// Opening writes the state anew, so that nothing is ever appended behind half a record.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/journal_file.h"
#include "tutti/core/random.h"

#include <utility>

#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

constexpr const char* kJournal = "journal";

void require_empty(const Folder& folder) {
  for (const std::string& name : folder.names()) {
    if (!name.starts_with("ps_")) continue;
    fail(ErrorCode::kFailedPrecondition, folder.path_of(kJournal),
         ": expected the journal of the job ", "that saved '", name,
         "', found none; try another folder, or delete these files");
  }
}

Folder locked(const std::string& path) {
  Folder folder = Folder::make(path);
  try {
    folder.lock();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kFailedPrecondition) throw;
    fail(ErrorCode::kFailedPrecondition, folder.path_of(kJournal),
         ": another coordinator writes it; ",
         "expected one per folder; try to end that one, or a folder of its own for each job");
  }
  return folder;
}

}  // namespace

FileKind journal_kind() { return {"TUTTIJNL", 4}; }

FoundJournal read_journal_file(const std::string& path, std::uint64_t size,
                               RecordReader::Source source, LedgerRules rules) {
  RecordReader in(journal_kind(), path, size, std::move(source));
  FoundJournal found;
  for (const std::byte each : in.head()) found.job_id += static_cast<char>(each);
  found.ledger = in.get_as("a state of closures", [&](const Packet& state) {
    return ClosureLedger::restore(state.head, rules);
  });
  found.ledger.replay_from_here(in);
  found.num_bytes = in.offset();
  return found;
}

JournalFile::JournalFile(const std::string& folder, LedgerRules rules, Duration sync_within)
    : folder_(locked(folder)),
      ledger_(rules),
      log_({.thread = "ps-journal",
            .who = "coordinator",
            .broken = concat(folder_.path_of(kJournal), ": could not be written before"),
            .remedy = "a new coordinator to go on with it",
            .sync_within = sync_within}) {
  if (folder_.size_of(kJournal)) {
    read(rules);
  } else {
    require_empty(folder_);
    job_id_ = new_unique_name();
  }
  begin_with(ledger_);
}

void JournalFile::read(LedgerRules rules) {
  const FileReader file = folder_.open_file(kJournal);
  FoundJournal found = read_journal_file(file.path(), file.size(), source_of(file), rules);
  if (found.num_bytes < file.size()) {
    log_warning(concat(file.path(), ": offset ", found.num_bytes, ": cuts off ",
                       file.size() - found.num_bytes,
                       " bytes: a record that was being written when the coordinator died"));
  }
  job_id_ = std::move(found.job_id);
  ledger_ = std::move(found.ledger);
}

void JournalFile::append(const ClosureEvent& event) { log_.append(encode(event)); }

void JournalFile::begin_with(const ClosureLedger& ledger) {
  log_.fail_if_broken();
  try {
    const Packet state{ledger.bytes(), {}};
    log_.go_on_with(RecordLog::make_file(folder_, kJournal, journal_kind(), job_id_, {&state, 1}));
  } catch (const std::exception& error) {
    log_.give_up(error.what());  // the name may be that of the new file, which nobody writes
    throw;
  }
}

}  // namespace tutti::internal
