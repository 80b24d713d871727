// A folder that a descriptor keeps open, and the files in it. No file name can lead outside the
// folder. Error messages suggest remedies.
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

/// Returns true if `name` can be the name of a checkpoint's file: at most 255 letters, digits, '.',
/// '_' and '-', not starting with a dot. Paths are not plain names.
bool is_plain_name(std::string_view name);

/// Returns the result of `body`. Converts its kInvalidArgument errors to kDataLoss errors that
/// begin with source(), which is called only if there is an error.
template <class Source, class Body>
auto damage_if_refused(const Source& source, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    throw Error(ErrorCode::kDataLoss, concat(source(), ": ", error.message()));
  }
}

/// File that is open for reading. Throws kDataLoss, naming the path and offset, if the disk reports
/// an error or the file ends, and kUnavailable for other failures.
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

/// New file that is open for writing. The destructor deletes it unless finish() was called.
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

  /// Preallocates the file's full size if the file system supports it.
  void reserve();
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// Flushes the bytes to disk and keeps the file.
  void finish();

 private:
  int folder_;
  FileDescriptor file_;
  std::string name_;
  std::string path_;
  std::uint64_t num_bytes_;
  bool finished_ = false;
};

/// File that is open for appending.
class FileAppender {
 public:
  FileAppender(int folder, FileDescriptor file, std::string path)
      : folder_(folder), file_(std::move(file)), path_(std::move(path)) {}
  /// Appends the bytes. If it throws, some of them may have been written.
  void write(std::span<const std::byte> bytes);
  /// Flushes the written bytes to the disk. Thread-safe, even during a write().
  void sync();

 private:
  int folder_;
  FileDescriptor file_;
  std::string path_;
};

/// Open folder. Functions that write throw kResourceExhausted for a full disk or quota, else
/// kUnavailable; each error states the path and the reason, a remedy if there is one and, for file
/// data, the number of bytes needed and the number available. Requires: is_plain_name() is true for
/// each name. Symbolic links are not followed.
class Folder {
 public:
  /// Opens the folder, following links because the user chose the path. Throws kNotFound or
  /// kUnavailable.
  static Folder open(const std::string& path);
  /// Same as open(), but returns nullopt if the folder does not exist.
  static std::optional<Folder> open_if_there(const std::string& path);
  /// Same as open(), but creates all missing folders of `path`.
  static Folder make(const std::string& path);

  const std::string& path() const { return path_; }
  std::string path_of(std::string_view name) const;

  /// Returns the names in the folder, sorted. Throws kUnavailable, or kDataLoss if the folder is
  /// damaged.
  std::vector<std::string> names() const;
  /// Opens the folder `name`. Returns nullopt if `name` does not exist, is not a folder or is a
  /// link.
  std::optional<Folder> find_folder(const std::string& name) const;
  Folder make_folder(const std::string& name) const;
  /// Returns true if the folder has an entry called `name`. Throws as size_of() does.
  bool exists(const std::string& name) const;
  /// Returns the size; nullopt if `name` does not exist or is not a regular file. If the system
  /// cannot determine it, throws kDataLoss for damage and kUnavailable otherwise.
  std::optional<std::uint64_t> size_of(const std::string& name) const;
  /// Returns true if `name` is a symbolic link, which no other function follows.
  bool is_link(const std::string& name) const;
  /// Throws kDataLoss if `name` does not exist, is not a regular file or cannot be read because of
  /// damage; kUnavailable if the system refuses access for another reason.
  FileReader open_file(const std::string& name) const;
  /// Creates a file that will have `num_bytes`, replacing any file of that name. This object must
  /// outlive the writer.
  FileWriter create_file(const std::string& name, std::uint64_t num_bytes) const;
  /// Opens an existing regular file. This object must outlive the appender.
  FileAppender append_to(const std::string& name) const;
  void rename(const std::string& from, const std::string& to) const;
  /// remove() deletes a file, remove_folder() an empty folder. Both return true if no entry of that
  /// name remains.
  bool remove(const std::string& name) const noexcept;
  bool remove_folder(const std::string& name) const noexcept;
  /// Makes earlier additions, renames and removals of names survive a power cut.
  void sync() const;
  /// Locks the folder against saves by other processes until this object is destroyed. Throws
  /// kFailedPrecondition if another process holds the lock.
  void lock() const;

 private:
  Folder(FileDescriptor folder, std::string path)
      : folder_(std::move(folder)), path_(std::move(path)) {}
  /// Returns the status of an entry (for a link, of the link itself); nullopt if `name` does not
  /// exist.
  std::optional<struct stat> status_of(const std::string& name) const;

  FileDescriptor folder_;
  std::string path_;
};

}  // namespace tutti::internal
