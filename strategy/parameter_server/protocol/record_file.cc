// Records written, read and appended; what a process that died left behind is told from damage.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/protocol/record_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/byte_codec.h"
#include "core/hash.h"
#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kMagic = 8;
constexpr std::uint32_t kLongestFileHead = std::uint32_t{1} << 20;
constexpr std::size_t kLengths = 16, kEnd = 4;  // of a record, in bytes
constexpr std::uint64_t kLongestTensors = std::uint64_t{1} << 62;
/// Pieces up to this length are written together.
constexpr std::size_t kShort = std::size_t{64} << 10;

void append(std::vector<std::byte>& to, std::span<const std::byte> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

/// For messages: what is no character stands as a dot.
std::string shown(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte each : bytes) {
    const char c = static_cast<char>(each);
    text += c >= ' ' && c <= '~' ? c : '.';
  }
  return text;
}

}  // namespace

RecordWriter::RecordWriter(const FileKind& kind, std::span<const std::byte> head, Sink sink)
    : sink_(std::move(sink)) {
  TUTTI_CHECK(kind.magic.size() == kMagic && head.size() <= kLongestFileHead,
              "RecordWriter: a magic of ", kind.magic.size(), " and a head of ", head.size(),
              " bytes");
  ByteWriter out;
  out.raw(std::as_bytes(std::span(kind.magic)));
  out.number(kind.format);
  out.number(static_cast<std::uint32_t>(head.size()));
  out.raw(head);
  checksum_ = crc32c_of(out.bytes());
  out.number(checksum_);
  sink_(out.bytes());
}

void RecordWriter::put(const Packet& packet) {
  ByteWriter out;
  out.number(static_cast<std::uint32_t>(packet.head.size()));
  out.number(std::uint64_t{packet.payload_bytes()});
  std::uint32_t checksum = crc32c_of(out.bytes(), checksum_);
  out.number(checksum);
  const auto put_bytes = [&](std::span<const std::byte> bytes) {
    checksum = crc32c_of(bytes, checksum);
    if (out.bytes().size() + bytes.size() <= kShort) return out.raw(bytes);
    sink_(out.bytes());
    out.bytes().clear();
    bytes.size() <= kShort ? out.raw(bytes) : sink_(bytes);
  };
  put_bytes(packet.head);
  for (const SharedBytes& piece : packet.payload) put_bytes(piece.bytes);
  out.number(checksum);
  sink_(out.bytes());
}

RecordReader::RecordReader(const FileKind& kind, std::string path, std::uint64_t size,
                           Source source)
    : RecordReader(std::move(path), size, std::move(source)) {
  constexpr std::size_t kFront = kMagic + 8;
  require(kFront, "the beginning");
  const std::vector<std::byte> front = bytes_at(0, kFront);
  if (std::memcmp(front.data(), kind.magic.data(), kMagic) != 0) {
    refuse(0, "expected a file that begins with '", kind.magic, "', found '",
           shown(std::span(front).first(kMagic)), "'");
  }
  ByteReader numbers{std::span(front).subspan(kMagic)};
  const auto format = numbers.number<std::uint32_t>(), length = numbers.number<std::uint32_t>();
  if (length > kLongestFileHead) {
    refuse(kFront - 4, "expected a head of at most ", kLongestFileHead, " bytes, found ", length);
  }
  offset_ = kFront;
  require(length + kEnd, "the head");
  head_ = bytes_at(kFront, length);
  checksum_ = crc32c_of(head_, crc32c_of(front));
  offset_ += length + kEnd;
  const auto found = ByteReader(bytes_at(offset_ - kEnd, kEnd)).number<std::uint32_t>();
  if (found != checksum_) {
    refuse(0, "expected checksum ", checksum_, " up to offset ", offset_ - kEnd, ", found ", found,
           ": the file was changed");
  }
  if (format != kind.format) {
    fail(ErrorCode::kUnimplemented, path_, ": offset ", kMagic, ": expected format ", kind.format,
         ", found ", format, "; try the version of tutti that wrote it");
  }
}

std::vector<std::byte> RecordReader::bytes_at(std::uint64_t offset, std::uint64_t count) const {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count));
  if (count > 0) source_(offset, bytes);
  return bytes;
}

void RecordReader::require(std::uint64_t count, const char* what) const {
  if (count <= size_ - offset_) return;
  refuse(offset_, "expected ", count, " bytes of ", what, ", found ", size_ - offset_,
         ": the file was cut off");
}

/// Nothing: these bytes begin no record.
std::optional<RecordReader::Lengths> RecordReader::lengths_in(
    std::span<const std::byte> bytes) const {
  ByteReader in(bytes.first(kLengths));
  Lengths lengths;
  lengths.message = in.number<std::uint32_t>();
  lengths.tensors = in.number<std::uint64_t>();
  lengths.checksum = crc32c_of(bytes.first(kLengths - 4), checksum_);
  if (in.number<std::uint32_t>() != lengths.checksum) return std::nullopt;
  if (lengths.tensors > kLongestTensors) return std::nullopt;
  return lengths;
}

Packet RecordReader::read(const Lengths& lengths) {
  const std::uint64_t count = lengths.message + lengths.tensors;
  require(kLengths + count + kEnd, "a record");
  const std::uint64_t first = offset_ + kLengths;
  Packet packet{bytes_at(first, lengths.message), {}};
  std::uint32_t checksum = crc32c_of(packet.head, lengths.checksum);
  if (lengths.tensors > 0) {
    const auto tensors = std::make_shared<const std::vector<std::byte>>(
        bytes_at(first + lengths.message, lengths.tensors));
    checksum = crc32c_of(*tensors, checksum);
    packet.payload.push_back({*tensors, tensors});
  }
  const auto found = ByteReader(bytes_at(first + count, kEnd)).number<std::uint32_t>();
  if (found != checksum) {
    refuse(offset_, "expected checksum ", checksum, " of a record of ", count, " bytes, found ",
           found, ": the file was changed");
  }
  offset_ = first + count + kEnd;
  return packet;
}

Packet RecordReader::get() {
  require(kLengths, "a record");
  const auto lengths = lengths_in(bytes_at(offset_, kLengths));
  if (lengths) return read(*lengths);
  refuse(offset_, "expected the lengths of a record, found other bytes: the file was changed");
}

/// Where another whole record begins behind this place.
std::optional<std::uint64_t> RecordReader::find_later() const {
  const std::vector<std::byte> rest = bytes_at(offset_, size_ - offset_);
  for (std::size_t place = 1; place + kLengths <= rest.size(); ++place) {
    const auto lengths = lengths_in(std::span(rest).subspan(place));
    const std::uint64_t left = rest.size() - place;
    if (lengths && kLengths + lengths->message + lengths->tensors + kEnd <= left) {
      return offset_ + place;
    }
  }
  return std::nullopt;
}

std::optional<Packet> RecordReader::next() {
  if (is_at_end()) return std::nullopt;
  try {
    return get();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDataLoss) throw;
  }
  if (const auto later = find_later()) {
    refuse(offset_, "expected a whole record, found other bytes before the one at offset ", *later,
           ": the file was changed; try a copy of the folder");
  }
  return std::nullopt;
}

RecordReader::Source source_of(std::span<const std::byte> bytes) {
  return [bytes](std::uint64_t offset, std::span<std::byte> out) {
    std::ranges::copy(bytes.subspan(static_cast<std::size_t>(offset), out.size()), out.begin());
  };
}

RecordReader::Source source_of(const FileReader& file) {
  return [&file](std::uint64_t offset, std::span<std::byte> bytes) { file.read(offset, bytes); };
}

class RecordLog::File {
 public:
  File(FileAppender file, std::uint32_t checksum)
      : out_(std::move(file)), records_(checksum, [this](std::span<const std::byte> bytes) {
          out_.write(bytes);
          num_bytes_ += bytes.size();
        }) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  void put(const Packet& record) { records_.put(record); }
  void sync() { out_.sync(); }
  std::uint64_t num_bytes() const { return num_bytes_; }

 private:
  FileAppender out_;
  RecordWriter records_;
  std::uint64_t num_bytes_ = 0;
};

RecordLog::RecordLog(RecordLogOptions options) : options_(std::move(options)) {
  thread_ = Executor::system().start(options_.thread, [this] { run(); });
}

RecordLog::~RecordLog() {
  {
    const MutexLock lock(mutex_);
    is_closing_ = true;
    changed_.notify_all();
  }
  thread_->join();
  try {
    sync();
  } catch (const std::exception& error) {
    log_warning(concat(options_.who, ": its last records may be lost: ", error.what()));
  }
}

std::shared_ptr<RecordLog::File> RecordLog::make_file(const Folder& folder, const std::string& name,
                                                      const FileKind& kind, std::string_view head,
                                                      std::span<const Packet> records) {
  std::vector<std::byte> bytes;
  RecordWriter out(kind, std::as_bytes(std::span(head)),
                   [&](std::span<const std::byte> piece) { internal::append(bytes, piece); });
  for (const Packet& each : records) out.put(each);
  const std::string unfinished = name + ".new";
  {
    FileWriter file = folder.create_file(unfinished, bytes.size());
    file.write(bytes);
    file.finish();
  }
  folder.rename(unfinished, name);
  folder.sync();
  return std::make_shared<File>(folder.append_to(name), out.checksum());
}

void RecordLog::go_on_with(std::shared_ptr<File> file) {
  const MutexLock lock(mutex_);
  if (file_ && has_unsynced_ && why_broken_.empty()) {
    try {
      file_->sync();
    } catch (const Error& error) {
      log_warning(concat(options_.who, ": ", error.message()));
    }
  }
  file_ = std::move(file);
  why_broken_.clear();
  has_unsynced_ = false;
}

void RecordLog::fail_broken() const {
  fail(ErrorCode::kUnavailable, options_.broken, " (", why_broken_, "); expected ",
       options_.remedy);
}

void RecordLog::fail_if_broken() const {
  const MutexLock lock(mutex_);
  if (!why_broken_.empty()) fail_broken();
}

void RecordLog::give_up(const std::string& why) {
  const MutexLock lock(mutex_);
  why_broken_ = why;
}

void RecordLog::append(const Packet& record) {
  const MutexLock lock(mutex_);
  if (!why_broken_.empty()) fail_broken();
  if (!file_) return;
  try {
    file_->put(record);
  } catch (const std::exception& error) {
    why_broken_ = error.what();  // half of it may stand there
    throw;
  }
  if (!std::exchange(has_unsynced_, true)) changed_.notify_all();
}

void RecordLog::sync() {
  const MutexLock sync_lock(sync_mutex_);
  std::shared_ptr<File> file;
  {
    const MutexLock lock(mutex_);
    if (!why_broken_.empty()) fail_broken();
    if (!std::exchange(has_unsynced_, false)) return;
    file = file_;
  }
  try {
    file->sync();  // others append meanwhile
  } catch (const std::exception& error) {
    const MutexLock lock(mutex_);
    // What the system could not write it may have forgotten: a second try proves nothing.
    if (file == file_) why_broken_ = error.what();
    throw;
  }
}

std::uint64_t RecordLog::num_appended() const {
  const MutexLock lock(mutex_);
  return file_ ? file_->num_bytes() : 0;
}

/// Lets records gather for a while, and puts them on the disk together.
void RecordLog::run() {
  for (;;) {
    {
      const MutexLock lock(mutex_);
      const auto is_needed = [this]() TUTTI_REQUIRES(mutex_) {
        return is_closing_ || (has_unsynced_ && why_broken_.empty());
      };
      (void)changed_.wait_until(mutex_, TimePoint::max(), is_needed);
      const auto is_closing = [this]() TUTTI_REQUIRES(mutex_) { return is_closing_; };
      if (changed_.wait_for(mutex_, options_.sync_within, is_closing)) return;
    }
    try {
      sync();
    } catch (const std::exception& error) {
      log(LogLevel::kError, concat(options_.who, ": ", error.what()));  // the next append() throws
    }
  }
}

}  // namespace tutti::internal
