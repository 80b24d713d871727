// Files that grow beyond the user's limit: an error of the call instead of the end of the program.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

#include <cstdint>

namespace tutti {

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
