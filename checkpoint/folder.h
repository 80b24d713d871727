// A folder by its descriptor, and the files in it: names lead nowhere else, errors say what to do.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/file.h"
#include "tutti/core/error.h"

namespace tutti::internal {

/// Whether `name` can be a file of a checkpoint: letters, digits, '.', '_' and '-', at most 255, no
/// dot first. No path.
bool is_plain_name(std::string_view name);

/// Returns what `body` returns. What it refuses as kInvalidArgument is kDataLoss of source(), which
/// is called for an error alone.
template <class Source, class Body>
auto damage_if_refused(const Source& source, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    throw Error(ErrorCode::kDataLoss, concat(source(), ": ", error.message()));
  }
}

/// A file that is read. Throws kDataLoss naming path and offset where the disk gives an error or
/// the file ends.
class FileReader {
 public:
  FileReader(FileDescriptor file, std::string path, std::uint64_t size)
      : file_(std::move(file)), path_(std::move(path)), size_(size) {}
  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  void read(std::uint64_t offset, std::span<std::byte> bytes) const;
  std::string read_text(std::uint64_t offset, std::size_t count) const;

 private:
  FileDescriptor file_;
  std::string path_;
  std::uint64_t size_;
};

/// A new file that is written. Unless finish() is called it is deleted again.
class FileWriter {
 public:
  FileWriter(int folder, FileDescriptor file, std::string name, std::string path,
             std::uint64_t num_bytes)
      : folder_(folder),
        file_(std::move(file)),
        name_(std::move(name)),
        path_(std::move(path)),
        num_bytes_(num_bytes) {}
  ~FileWriter();
  FileWriter(FileWriter&&) = delete;
  FileWriter& operator=(FileWriter&&) = delete;

  /// Asks for the space of all bytes at once, where the file system can.
  void reserve();
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// The bytes are on the disk.
  void finish();

 private:
  int folder_;
  FileDescriptor file_;
  std::string name_;
  std::string path_;
  std::uint64_t num_bytes_;
  bool finished_ = false;
};

/// A file that grows.
class FileAppender {
 public:
  FileAppender(int folder, FileDescriptor file, std::string path)
      : folder_(folder), file_(std::move(file)), path_(std::move(path)) {}
  /// At its end. When it throws, a part may stand there.
  void write(std::span<const std::byte> bytes);
  /// What was written is on the disk. Beside write(), from any thread.
  void sync();

 private:
  int folder_;
  FileDescriptor file_;
  std::string path_;
};

/// Errors of writing: kResourceExhausted for a full disk or quota, else kUnavailable; each names
/// path, reason, the bytes needed and free, and what to try. Names given to functions are
/// is_plain_name(); symbolic links are not followed.
class Folder {
 public:
  /// Follows links: `path` is the user's word. Throws kNotFound, kUnavailable.
  static Folder open(const std::string& path);
  /// Nothing when there is none.
  static std::optional<Folder> open_if_there(const std::string& path);
  /// Makes what is missing of `path`, too.
  static Folder make(const std::string& path);

  const std::string& path() const { return path_; }
  std::string path_of(std::string_view name) const;

  /// What it holds, sorted. Throws kUnavailable.
  std::vector<std::string> names() const;
  /// Nothing when `name` is no folder (or a link).
  std::optional<Folder> find_folder(const std::string& name) const;
  Folder make_folder(const std::string& name) const;
  /// Returns true if there is anything of that name. Throws like size_of().
  bool exists(const std::string& name) const;
  /// Returns the size; nothing if `name` is not there or not a regular file. Throws kUnavailable,
  /// or kDataLoss for damage, if the system does not know.
  std::optional<std::uint64_t> size_of(const std::string& name) const;
  /// Returns true if `name` is a symbolic link, which all other functions do not follow.
  bool is_link(const std::string& name) const;
  /// Throws kDataLoss when `name` is not there, no regular file or unreadable by damage;
  /// kUnavailable when the system refuses for other reasons.
  FileReader open_file(const std::string& name) const;
  /// `num_bytes` is how long it will be. Replaces what is there. This object must outlive the
  /// writer.
  FileWriter create_file(const std::string& name, std::uint64_t num_bytes) const;
  /// A regular file that is there. This object must outlive the appender.
  FileAppender append_to(const std::string& name) const;
  void rename(const std::string& from, const std::string& to) const;
  /// Whether it is gone; what is not there is gone.
  bool remove(const std::string& name) const noexcept;
  bool remove_folder(const std::string& name) const noexcept;
  /// Makes names that were added, renamed or removed survive a power cut.
  void sync() const;
  /// Holds off other processes' savers until this object dies. Throws kFailedPrecondition when
  /// another one holds it.
  void lock() const;

 private:
  Folder(FileDescriptor folder, std::string path)
      : folder_(std::move(folder)), path_(std::move(path)) {}
  /// Of a link, not of what it leads to; nothing if `name` is not there.
  std::optional<struct stat> status_of(const std::string& name) const;

  FileDescriptor folder_;
  std::string path_;
};

}  // namespace tutti::internal
