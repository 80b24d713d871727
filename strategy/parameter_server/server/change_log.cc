// Records are written while the locks of their shards are held, so that their order is that of the
// changes.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/server/change_log.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "tutti/core/byte_codec.h"
#include "tutti/core/crc32c.h"
#include "tutti/core/logging.h"
#include "tutti/strategy/parameter_server/protocol/checked_blocks.h"

namespace tutti::internal {
namespace {

constexpr FileKind kKind{"TUTTIPSL", 3};
/// u64 number in the file, u32 and u64 lengths of head and payload, u32 checksum of these; then
/// a message OperationBatch, its tensors, u32 checksum of both.
constexpr std::size_t kRecordHead = 24, kRecordEnd = 4;
/// Records up to this length are written by one call.
constexpr std::size_t kShort = std::size_t{64} << 10;

std::vector<std::byte> record_head(std::uint64_t number, const Packet& packet) {
  ByteWriter head;
  head.number(number);
  head.number(static_cast<std::uint32_t>(packet.head.size()));
  head.number(std::uint64_t{packet.payload_bytes()});
  head.number(crc32c_of(head.bytes()));
  return std::move(head.bytes());
}

std::uint32_t checksum_of(const Packet& packet) {
  std::uint32_t checksum = crc32c_of(packet.head);
  for (const SharedBytes& piece : packet.payload) checksum = crc32c_of(piece.bytes, checksum);
  return checksum;
}

struct RecordSizes {
  std::uint64_t number = 0;
  std::uint64_t head = 0;
  std::uint64_t payload = 0;
  std::uint64_t bytes() const { return kRecordHead + head + payload + kRecordEnd; }
};

/// Nothing: these bytes begin no record.
std::optional<RecordSizes> sizes_in(std::span<const std::byte> bytes) {
  if (bytes.size() < kRecordHead) return std::nullopt;
  ByteReader in(bytes.first(kRecordHead));
  RecordSizes sizes;
  sizes.number = in.number<std::uint64_t>();
  sizes.head = in.number<std::uint32_t>();
  sizes.payload = in.number<std::uint64_t>();
  if (in.number<std::uint32_t>() != crc32c_of(bytes.first(kRecordHead - 4))) return std::nullopt;
  if (sizes.payload > (std::uint64_t{1} << 62)) return std::nullopt;
  return sizes;
}

/// Whether a record with a later number begins somewhere in these bytes.
bool holds_record(std::span<const std::byte> bytes, std::uint64_t after) {
  for (std::size_t place = 1; place + kRecordHead <= bytes.size(); ++place) {
    const auto sizes = sizes_in(bytes.subspan(place));
    if (sizes && sizes->number > after && sizes->bytes() <= bytes.size() - place) return true;
  }
  return false;
}

}  // namespace

ChangeLog::ChangeLog(const std::string& folder, std::string job_id, int server, int num_servers,
                     Duration sync_within)
    : folder_(Folder::make(folder)),
      begin_(concat("ps_", server, "_of_", num_servers, ".log_")),
      job_id_(std::move(job_id)),
      sync_within_(sync_within) {
  thread_ = Executor::system().start("ps-log", [this] { run(); });
}

ChangeLog::~ChangeLog() {
  {
    const MutexLock lock(mutex_);
    is_closing_ = true;
    changed_.notify_all();
  }
  thread_->join();
}

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

std::vector<std::byte> ChangeLog::head() const {
  std::vector<std::byte> bytes;
  CheckedWriter out(kKind, std::as_bytes(std::span(job_id_)),
                    [&](std::span<const std::byte> piece) {
                      bytes.insert(bytes.end(), piece.begin(), piece.end());
                    });
  out.finish();
  return bytes;
}

void ChangeLog::prepare(std::uint64_t cut) {
  Part part{cut, 0};
  for (const Part& each : parts()) {
    if (each.cut >= part.cut) part = {each.cut, each.number + 1};
  }
  const std::string name = name_of(part);
  const std::string unfinished = name + ".new";
  const std::vector<std::byte> bytes = head();
  {
    FileWriter file = folder_.create_file(unfinished, bytes.size());
    file.write(bytes);
    file.finish();
  }
  folder_.rename(unfinished, name);
  folder_.sync();
  next_ = std::make_shared<File>(folder_, name);
}

void ChangeLog::switch_over() {
  const MutexLock lock(mutex_);
  if (file_ && has_unsynced_ && why_broken_.empty()) {
    try {
      file_->out.sync();
    } catch (const Error& error) {
      log_warning(concat("log of changes: ", error.message()));
    }
  }
  file_ = std::move(next_);
  next_.reset();
  why_broken_.clear();
  has_unsynced_ = false;
}

void ChangeLog::append(const OperationBatch& batch) {
  const Packet packet = encode(batch);
  ByteWriter end;
  end.number(checksum_of(packet));
  const MutexLock lock(mutex_);
  if (!file_) return;  // the first snapshot will have it
  if (!why_broken_.empty()) {
    fail(ErrorCode::kUnavailable, "its log of changes could not be written (", why_broken_,
         "); expected a cut to begin a new one");
  }
  std::vector<std::byte> head = record_head(file_->num_records + 1, packet);
  head.insert(head.end(), packet.head.begin(), packet.head.end());
  try {
    if (head.size() + packet.payload_bytes() <= kShort) {
      for (const SharedBytes& piece : packet.payload) {
        head.insert(head.end(), piece.bytes.begin(), piece.bytes.end());
      }
      head.insert(head.end(), end.bytes().begin(), end.bytes().end());
      file_->out.write(head);
    } else {
      file_->out.write(head);
      for (const SharedBytes& piece : packet.payload) file_->out.write(piece.bytes);
      file_->out.write(end.bytes());
    }
  } catch (const Error& error) {
    why_broken_ = error.message();  // half of it may stand there
    throw;
  }
  ++file_->num_records;
  if (!std::exchange(has_unsynced_, true)) changed_.notify_all();
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
  const auto bytes_at = [&](std::uint64_t place, std::uint64_t count) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(count));
    file.read(place, bytes);
    return bytes;
  };
  CheckedReader in(kKind, file.path(), file.size(),
                   [&](std::uint64_t offset, std::span<std::byte> out) { file.read(offset, out); });
  std::string job_id;
  for (const std::byte each : in.head()) job_id += static_cast<char>(each);
  if (job_id != job_id_) {
    fail(ErrorCode::kFailedPrecondition, file.path(), ": expected changes of job '", job_id_,
         "', found those of '", job_id, "'; try another folder, or delete what is of other jobs");
  }
  std::uint64_t place = in.finish_part(), number = 0;
  while (place < file.size()) {
    const std::uint64_t left = file.size() - place;
    const auto sizes = sizes_in(bytes_at(place, std::min<std::uint64_t>(left, kRecordHead)));
    if (!sizes || sizes->number != number + 1 || sizes->bytes() > left) break;
    const auto body = std::make_shared<const std::vector<std::byte>>(
        bytes_at(place + kRecordHead, sizes->bytes() - kRecordHead));
    const std::span<const std::byte> all(*body);
    const auto content = all.first(all.size() - kRecordEnd);
    if (ByteReader(all.last(kRecordEnd)).number<std::uint32_t>() != crc32c_of(content)) break;
    const auto head = content.first(static_cast<std::size_t>(sizes->head));
    Packet packet{{head.begin(), head.end()}, {}};
    packet.payload.push_back({content.subspan(head.size()), body});
    take(decode_batch(packet));
    ++number;
    place += sizes->bytes();
  }
  if (place == file.size()) return number;
  const std::uint64_t left = file.size() - place;
  if (holds_record(bytes_at(place, left), number)) {
    in.refuse(place, "expected record ", number + 1, ", found other bytes before a whole record: ",
              "the file was changed; try a copy of the folder");
  }
  log_warning(concat(file.path(), ": offset ", place, ": leaves out ", left,
                     " bytes: a record that was being written when the server died"));
  return number;
}

void ChangeLog::sync() {
  std::shared_ptr<File> file;
  {
    const MutexLock lock(mutex_);
    if (!std::exchange(has_unsynced_, false) || !why_broken_.empty()) return;
    file = file_;
  }
  try {
    file->out.sync();  // others are written meanwhile
  } catch (const Error& error) {
    const MutexLock lock(mutex_);
    // What the system could not write it may have forgotten: a second try proves nothing.
    if (file == file_) why_broken_ = error.message();
  }
}

/// Lets records gather for a while, and puts them on the disk together.
void ChangeLog::run() {
  for (;;) {
    {
      const MutexLock lock(mutex_);
      const auto is_needed = [this]()
                                 TUTTI_REQUIRES(mutex_) { return is_closing_ || has_unsynced_; };
      while (!changed_.wait_for(mutex_, std::chrono::hours(1), is_needed)) {
      }
      const auto is_closing = [this]() TUTTI_REQUIRES(mutex_) { return is_closing_; };
      if (changed_.wait_for(mutex_, sync_within_, is_closing)) break;
    }
    sync();
  }
  sync();
}

}  // namespace tutti::internal
