// Reads and writes whole files; the user's file size limit; file descriptors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>
#include <signal.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/core/clock.h"

namespace tutti {

// Reading and writing of whole files. A reader sees either the old content or the new, never a
// mixture.

/// Returns the bytes of a file. Throws kNotFound or kUnavailable with the path and the reason.
std::string read_file(const std::string& path);
/// Same as read_file(), but returns "" if the file cannot be read.
std::string read_file_if_any(const std::string& path);
/// Returns the names of a folder's entries, in no particular order; empty if it cannot be read.
std::vector<std::string> names_in_folder(const std::string& path);

/// Writes a temporary file next to `path`, flushes it to disk and renames it to `path`. Creates
/// missing folders. Throws kUnavailable with the path and the reason; `path` is then unchanged.
void write_file_atomically(const std::string& path, std::string_view bytes);

// File size limit. A call that exceeds it should fail with an error instead of ending the program.

/// Returns the user's file size limit (`ulimit -f`), in bytes. It also applies to files in memory.
std::uint64_t file_size_limit();

/// Scope in which a call by this thread that exceeds the file size limit (`ulimit -f`) fails with
/// EFBIG, just as a write to a full disk fails with ENOSPC. It blocks and discards SIGXFSZ, which
/// would otherwise end the program. Does nothing if the program has blocked that signal itself.
class FileSizeLimitScope {
 public:
  FileSizeLimitScope();
  ~FileSizeLimitScope();
  FileSizeLimitScope& operator=(FileSizeLimitScope&&) = delete;

 private:
  sigset_t before_;
};

namespace internal {

/// Owner of a file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int number) : number_(number) {}
  ~FileDescriptor() { close(); }
  FileDescriptor(FileDescriptor&& other) noexcept : number_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  int get() const { return number_; }
  bool is_open() const { return number_ >= 0; }
  /// Returns the descriptor, which the caller must close.
  int release() { return std::exchange(number_, -1); }
  /// Returns true if close() succeeded: some file systems report a full disk only here.
  bool close();

 private:
  int number_ = -1;
};

/// Returns the result of the system call `call`, which is retried while signals interrupt it.
template <class Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

/// Returns true if all bytes were written; otherwise errno holds the reason.
bool write_all(int fd, std::span<const std::byte> bytes);

/// Returns an eventfd with which another thread can end a poll().
FileDescriptor make_wake_event();
/// Returns a descriptor that becomes readable when the process ends, or one that is not open if the
/// system lacks pidfds or the process does not exist.
FileDescriptor watch_process(int pid);

/// Waits until a descriptor is ready or the deadline passes, but for at most one hour. Returns the
/// number of ready descriptors, or -1 with errno. The waiting thread releases the run token and
/// counts as asleep.
int poll_until(std::span<pollfd> descriptors, TimePoint deadline);

}  // namespace internal
}  // namespace tutti
