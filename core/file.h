// Whole files, written atomically; the user's limit of their size; descriptors, waited for.
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

// Whole files: read, and written so that a reader sees the old content or the new, never half.

/// The bytes of a file. Throws kNotFound or kUnavailable naming the path and the system's reason.
std::string read_file(const std::string& path);
/// The same, or "" where it cannot be read: for what some systems tell and others do not.
std::string read_file_if_any(const std::string& path);
/// Returns the names in a folder, in no order; none where it cannot be read.
std::vector<std::string> names_in_folder(const std::string& path);

/// Writes to a temporary file beside `path`, flushes it to the disk and renames it over `path`.
/// Makes missing folders. Throws kUnavailable naming the path and the system's reason; then `path`
/// is unchanged.
void write_file_atomically(const std::string& path, std::string_view bytes);

// Files that grow beyond the user's limit: an error of the call instead of the end of the program.

/// Of this process's files (`ulimit -f`), in bytes. Files of memory are files, too.
std::uint64_t file_size_limit();

/// While it lives, a call of this thread that makes a file larger than allowed (`ulimit -f`) fails
/// with EFBIG, as a full disk fails with ENOSPC; the signal SIGXFSZ, which ends programs, is taken
/// away. Programs that have blocked it themselves find everything as it was.
class FileSizeLimitScope {
 public:
  FileSizeLimitScope();
  ~FileSizeLimitScope();
  FileSizeLimitScope& operator=(FileSizeLimitScope&&) = delete;

 private:
  sigset_t before_;
};

namespace internal {

/// Owns a file descriptor of the system.
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
  /// Returns the descriptor, which the caller closes.
  int release() { return std::exchange(number_, -1); }
  /// Returns true if the system agreed: some file systems report a full disk only here.
  bool close();

 private:
  int number_ = -1;
};

/// Returns the result of `call`, a call of the system, which is repeated while signals interrupt
/// it.
template <class Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

/// Whether all went out; else errno says why not.
bool write_all(int fd, std::span<const std::byte> bytes);

/// A counter that poll() sees: what wakes a thread out of it.
FileDescriptor make_wake_event();
/// poll() sees POLLIN when the process ends. Not open: the system has no such thing, or no process.
FileDescriptor watch_process(int pid);

/// Waits until one is ready or the deadline; returns how many are. Hands the run token on, and
/// counts as asleep, while it waits.
int poll_until(std::span<pollfd> descriptors, TimePoint deadline);

}  // namespace internal
}  // namespace tutti
