// Records are written while the locks of their shards are held, so that their order is that of the
// changes.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/server/change_log.h"

#include <algorithm>
#include <charconv>

#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

constexpr FileKind kKind{"TUTTIPSL", 4};

}  // namespace

ChangeLog::ChangeLog(const std::string& folder, std::string job_id, int server, int num_servers,
                     Duration sync_within)
    : folder_(Folder::make(folder)),
      begin_(concat("ps_", server, "_of_", num_servers, ".log_")),
      job_id_(std::move(job_id)),
      log_({.thread = "ps-log",
            .who = concat("ps ", server, ": log of changes"),
            .broken = "its log of changes could not be written",
            .remedy = "a cut to begin a new one",
            .sync_within = sync_within}) {}

std::string ChangeLog::name_of(const Part& part) const {
  return concat(begin_, part.cut, "_", part.number);
}

std::vector<ChangeLog::Part> ChangeLog::parts() const {
  std::vector<Part> found;
  for (const std::string& name : folder_.names()) {
    if (!name.starts_with(begin_)) continue;
    Part part;
    const char* const end = name.data() + name.size();
    const auto cut = std::from_chars(name.data() + begin_.size(), end, part.cut);
    if (cut.ec != std::errc() || cut.ptr == end || *cut.ptr != '_') continue;
    const auto number = std::from_chars(cut.ptr + 1, end, part.number);
    if (number.ec == std::errc() && number.ptr == end) found.push_back(part);
  }
  std::ranges::sort(found);
  return found;
}

void ChangeLog::prepare(std::uint64_t cut) {
  Part part{cut, 0};
  for (const Part& each : parts()) {
    if (each.cut >= part.cut) part = {each.cut, each.number + 1};
  }
  next_ = RecordLog::make_file(folder_, name_of(part), kKind, job_id_);
}

void ChangeLog::forget_before(std::uint64_t cut) const {
  for (const Part& each : parts()) {
    if (each.cut < cut) (void)folder_.remove(name_of(each));
  }
}

std::uint64_t ChangeLog::replay(std::uint64_t cut,
                                const std::function<void(OperationBatch)>& take) const {
  std::uint64_t num_batches = 0;
  bool has_cut = false;
  for (const Part& each : parts()) {
    if (each.cut < cut) continue;
    has_cut = has_cut || each.cut == cut;
    num_batches += replay_part(each, take);
  }
  if (has_cut) return num_batches;
  fail(ErrorCode::kFailedPrecondition, folder_.path_of(name_of({cut, 0})), ": expected the log ",
       "of changes since cut ", cut, ", found none; try a copy of the folder, or another one");
}

std::uint64_t ChangeLog::replay_part(const Part& part,
                                     const std::function<void(OperationBatch)>& take) const {
  const FileReader file = folder_.open_file(name_of(part));
  RecordReader in(kKind, file.path(), file.size(), source_of(file));
  std::string job_id;
  for (const std::byte each : in.head()) job_id += static_cast<char>(each);
  if (job_id != job_id_) {
    fail(ErrorCode::kFailedPrecondition, file.path(), ": expected changes of job '", job_id_,
         "', found those of '", job_id, "'; try another folder, or delete what is of other jobs");
  }
  std::uint64_t number = 0;
  for (; const auto packet = in.next(); ++number) take(decode_batch(*packet));
  if (in.is_at_end()) return number;
  log_warning(concat(file.path(), ": offset ", in.offset(), ": leaves out ",
                     file.size() - in.offset(),
                     " bytes: a record that was being written when the server died"));
  return number;
}

}  // namespace tutti::internal
