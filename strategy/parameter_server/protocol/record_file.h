// Files of records: messages with their tensors, whose checksums show every changed, missing or
// moved byte, with its place.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/folder.h"
#include "tutti/cluster/rpc/packet.h"
#include "tutti/core/error.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// What a file of this kind begins with.
struct FileKind {
  std::string_view magic = {};  // 8 characters
  std::uint32_t format = 1;
};

/// The file: magic, u32 format, u32 length of its head, the head, u32 checksum of these; then
/// records: u32 and u64 lengths of message and tensors, u32 checksum of the lengths, the message,
/// the tensors, u32 checksum of all of the record. Checksums are CRC32C; those of records run on
/// from that of the file's beginning, so that a record of another file is none here. Little-endian.
class RecordWriter {
 public:
  /// Gets what is to be written, a short record in one piece.
  using Sink = std::function<void(std::span<const std::byte>)>;
  RecordWriter(const FileKind& kind, std::span<const std::byte> head, Sink sink);
  /// Records that follow those of another writer; 0: of no file.
  RecordWriter(std::uint32_t checksum, Sink sink) : sink_(std::move(sink)), checksum_(checksum) {}
  void put(const Packet& packet);
  std::uint32_t checksum() const { return checksum_; }

 private:
  const Sink sink_;
  std::uint32_t checksum_ = 0;  // of the file's beginning
};

/// Reads what RecordWriter wrote. Nothing is given out before its checksum was compared. Throws
/// kDataLoss naming the path, the offset, what was expected and what was found; kUnimplemented for
/// another format of the same kind.
class RecordReader {
 public:
  /// Reads bytes at an offset; all of them are within `size`.
  using Source = std::function<void(std::uint64_t offset, std::span<std::byte> bytes)>;
  RecordReader(const FileKind& kind, std::string path, std::uint64_t size, Source source);
  /// Records of no file.
  RecordReader(std::string path, std::uint64_t size, Source source)
      : path_(std::move(path)), size_(size), source_(std::move(source)) {}

  std::span<const std::byte> head() const { return head_; }
  /// In the file, of the record that comes next.
  std::uint64_t offset() const { return offset_; }
  bool is_at_end() const { return offset_ == size_; }
  /// The next record. Takes memory only for what the file is long enough to hold.
  Packet get();
  /// The same; nothing at the end, and where a last record was being written when the process died:
  /// nobody was told of it. Throws when other whole records follow that place.
  std::optional<Packet> next();
  /// What `decode` makes of the next record. Throws kDataLoss naming its place and `what`.
  template <class Decode>
  auto get_as(const char* what, const Decode& decode) {
    const std::uint64_t first = offset_;
    const Packet packet = get();
    try {
      return decode(packet);
    } catch (const Error& error) {
      refuse(first, "expected ", what, ", found ", error.message());
    }
  }
  template <class... Parts>
  [[noreturn]] void refuse(std::uint64_t offset, const Parts&... parts) const {
    fail(ErrorCode::kDataLoss, path_, ": offset ", offset, ": ", parts...);
  }

 private:
  struct Lengths {
    std::uint64_t message = 0, tensors = 0;
    std::uint32_t checksum = 0;  // of the record up to here
  };
  std::vector<std::byte> bytes_at(std::uint64_t offset, std::uint64_t count) const;
  void require(std::uint64_t count, const char* what) const;
  std::optional<Lengths> lengths_in(std::span<const std::byte> bytes) const;
  std::optional<std::uint64_t> find_later() const;
  Packet read(const Lengths& lengths);

  const std::string path_;
  const std::uint64_t size_;
  const Source source_;
  std::uint64_t offset_ = 0;
  std::uint32_t checksum_ = 0;
  std::vector<std::byte> head_;
};

/// Reads a span that lives on.
RecordReader::Source source_of(std::span<const std::byte> bytes);
RecordReader::Source source_of(const FileReader& file);

struct RecordLogOptions {
  std::string thread = {};  // its name
  std::string who = {};     // "coordinator", for messages
  /// What append() says once it failed: "<broken> (<why>); expected <remedy>".
  std::string broken = {};
  std::string remedy = {};
  Duration sync_within = std::chrono::milliseconds(5);
};

/// A file that records are appended to. What was appended outlives the process at once, and a power
/// cut `sync_within` later: a thread puts many on the disk together. Threads: any.
class RecordLog {
 public:
  class File;

  explicit RecordLog(RecordLogOptions options);
  ~RecordLog();
  RecordLog(const RecordLog&) = delete;
  RecordLog& operator=(const RecordLog&) = delete;

  /// A file of a folder that outlives it, whole and on the disk: with this head and these records.
  /// It takes the place of one of its name. Throws as Folder.
  static std::shared_ptr<File> make_file(const Folder& folder, const std::string& name,
                                         const FileKind& kind, std::string_view head,
                                         std::span<const Packet> records = {});
  /// From here on records go to this file; what kept append() from writing is over.
  void go_on_with(std::shared_ptr<File> file);

  /// Without a file it does nothing. When it throws (errors of Folder), nothing is appended to this
  /// file any more.
  void append(const Packet& record);
  /// All that was appended is on the disk.
  void sync();
  /// append() throws from now on, and go_on_with() ends that.
  void give_up(const std::string& why);
  void fail_if_broken() const;
  /// Bytes of records in the file that were appended.
  std::uint64_t num_appended() const;

 private:
  void run();
  [[noreturn]] void fail_broken() const TUTTI_REQUIRES(mutex_);

  const RecordLogOptions options_;
  Mutex sync_mutex_;  // held while something is put on the disk; before mutex_
  mutable Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<File> file_ TUTTI_GUARDED_BY(mutex_);
  std::string why_broken_ TUTTI_GUARDED_BY(mutex_);
  bool has_unsynced_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_closing_ TUTTI_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Thread> thread_;
};

}  // namespace tutti::internal
