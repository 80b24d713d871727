// Whole files, read and written atomically, and the user's limit of their size.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace tutti {

// Whole files: read, and written so that a reader sees the old content or the new, never half.

/// The bytes of a file. Throws kNotFound or kUnavailable naming the path and the system's reason.
std::string read_file(const std::string& path);

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
  FileSizeLimitScope(const FileSizeLimitScope&) = delete;
  FileSizeLimitScope& operator=(const FileSizeLimitScope&) = delete;

 private:
  sigset_t before_;
};

}  // namespace tutti
