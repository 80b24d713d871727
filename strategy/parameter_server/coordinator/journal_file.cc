// Opening writes the state anew, so that nothing is ever appended behind half a record.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/coordinator/journal_file.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tutti/cluster/net/hello.h"
#include "tutti/core/byte_codec.h"
#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

constexpr const char* kJournal = "journal";
constexpr const char* kNewName = "journal.new";

/// Unlike that of any other job.
std::string new_job_id() {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string id;
  for (const std::byte each : make_hello("chief", 0).nonce) {
    id += kDigits[std::to_integer<unsigned>(each) / 16];
    id += kDigits[std::to_integer<unsigned>(each) % 16];
  }
  return id;
}

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

FileKind journal_kind() { return {"TUTTIJNL", 3}; }

FoundJournal read_journal_file(const std::string& path, std::span<const std::byte> file,
                               LedgerRules rules) {
  CheckedReader in(journal_kind(), path, file.size(),
                   [&](std::uint64_t offset, std::span<std::byte> bytes) {
                     const auto piece = file.subspan(static_cast<std::size_t>(offset));
                     std::ranges::copy(piece.first(bytes.size()), bytes.begin());
                   });
  FoundJournal found;
  for (const std::byte each : in.head()) found.job_id += static_cast<char>(each);
  std::byte length[sizeof(std::uint64_t)];
  in.get(std::span<std::byte>(length));
  const std::uint64_t first_of_state = in.offset();
  const auto state = in.get(ByteReader(length).number<std::uint64_t>());
  const std::uint64_t first = in.finish_part();
  try {
    found.ledger = ClosureLedger::restore(state, rules);
  } catch (const Error& error) {
    in.refuse(first_of_state, "expected a state of closures, found ", error.message());
  }
  try {
    std::size_t whole = 0;
    found.ledger =
        found.ledger.replay_from_here(file.subspan(static_cast<std::size_t>(first)), &whole);
    found.num_bytes = first + whole;
  } catch (const Error& error) {
    throw error.with_context(concat(path, ": records from offset ", first, " on"));
  }
  return found;
}

std::vector<std::byte> journal_head(const std::string& job_id, const ClosureLedger& ledger) {
  const std::vector<std::byte> state = ledger.bytes();
  std::vector<std::byte> head;
  CheckedWriter out(journal_kind(), std::as_bytes(std::span(job_id)),
                    [&](std::span<const std::byte> bytes) {
                      head.insert(head.end(), bytes.begin(), bytes.end());
                    });
  ByteWriter length;
  length.number(std::uint64_t{state.size()});
  out.put(length.bytes());
  out.put(state);
  out.finish();
  return head;
}

JournalFile::JournalFile(const std::string& folder, LedgerRules rules, Duration sync_within)
    : folder_(locked(folder)), sync_within_(sync_within), ledger_(rules) {
  if (folder_.size_of(kJournal)) {
    read(rules);
  } else {
    require_empty(folder_);
    job_id_ = new_job_id();
  }
  begin_with(ledger_);
  thread_ = Executor::system().start("ps-journal", [this] { run(); });
}

JournalFile::~JournalFile() {
  {
    const MutexLock lock(mutex_);
    is_closing_ = true;
    changed_.notify_all();
  }
  thread_->join();
  try {
    sync();
  } catch (const std::exception& error) {
    log_warning(concat("coordinator: its last events may be lost: ", error.what()));
  }
}

void JournalFile::read(LedgerRules rules) {
  const FileReader file = folder_.open_file(kJournal);
  std::vector<std::byte> bytes(static_cast<std::size_t>(file.size()));
  file.read(0, bytes);
  FoundJournal found = read_journal_file(file.path(), bytes, rules);
  if (found.num_bytes < bytes.size()) {
    log_warning(concat(file.path(), ": offset ", found.num_bytes, ": cuts off ",
                       bytes.size() - found.num_bytes,
                       " bytes: a record that was being written when the coordinator died"));
  }
  job_id_ = std::move(found.job_id);
  ledger_ = std::move(found.ledger);
}

void JournalFile::write_new(const ClosureLedger& ledger) {
  const std::vector<std::byte> head = journal_head(job_id_, ledger);
  {
    FileWriter file = folder_.create_file(kNewName, head.size());
    file.write(head);
    file.finish();
  }
  folder_.rename(kNewName, kJournal);
  folder_.sync();
}

void JournalFile::begin_with(const ClosureLedger& ledger) {
  const MutexLock sync_lock(sync_mutex_);
  const MutexLock lock(mutex_);
  fail_if_broken();
  try {
    write_new(ledger);
    file_.emplace(folder_.append_to(kJournal));
  } catch (const std::exception& error) {
    why_broken_ = error.what();
    throw;
  }
  num_appended_ = 0;
  has_unsynced_ = false;
}

void JournalFile::fail_if_broken() const {
  if (why_broken_.empty()) return;
  fail(ErrorCode::kUnavailable, folder_.path_of(kJournal), ": could not be written before (",
       why_broken_, "); expected a new coordinator to go on with it");
}

void JournalFile::append(std::span<const std::byte> record) {
  const MutexLock lock(mutex_);
  fail_if_broken();
  try {
    file_->write(record);
  } catch (const std::exception& error) {
    why_broken_ = error.what();  // half of it may stand there
    throw;
  }
  num_appended_ += record.size();
  if (!std::exchange(has_unsynced_, true)) changed_.notify_all();
}

void JournalFile::sync() {
  const MutexLock sync_lock(sync_mutex_);
  FileAppender* file = nullptr;
  {
    const MutexLock lock(mutex_);
    fail_if_broken();
    if (!std::exchange(has_unsynced_, false)) return;
    file = &*file_;
  }
  try {
    file->sync();  // others append meanwhile
  } catch (const Error& error) {
    const MutexLock lock(mutex_);
    // What the system could not write it may have forgotten: a second try proves nothing.
    why_broken_ = error.message();
    throw;
  }
}

std::uint64_t JournalFile::num_appended() const {
  const MutexLock lock(mutex_);
  return num_appended_;
}

/// Lets records gather for a while, and puts them on the disk together.
void JournalFile::run() {
  for (;;) {
    {
      const MutexLock lock(mutex_);
      const auto is_needed = [this]() TUTTI_REQUIRES(mutex_) {
        return is_closing_ || (has_unsynced_ && why_broken_.empty());
      };
      (void)changed_.wait_until(mutex_, TimePoint::max(), is_needed);
      const auto is_closing = [this]() TUTTI_REQUIRES(mutex_) { return is_closing_; };
      if (changed_.wait_for(mutex_, sync_within_, is_closing)) return;
    }
    try {
      sync();
    } catch (const std::exception& error) {
      log(LogLevel::kError, concat("coordinator: ", error.what()));  // the next append() throws
    }
  }
}

}  // namespace tutti::internal
