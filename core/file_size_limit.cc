// Files that grow beyond the user's limit: an error of the call instead of the end of the program.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/file_size_limit.h"

#include <sys/resource.h>

#include <cerrno>
#include <ctime>
#include <limits>

namespace tutti {
namespace {

sigset_t the_signal() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGXFSZ);
  return set;
}

}  // namespace

std::uint64_t file_size_limit() {
  rlimit limit = {};
  const bool is_known = ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return is_known ? limit.rlim_cur : std::numeric_limits<std::uint64_t>::max();
}

FileSizeLimitScope::FileSizeLimitScope() {
  const sigset_t own = the_signal();
  ::pthread_sigmask(SIG_BLOCK, &own, &before_);
}

FileSizeLimitScope::~FileSizeLimitScope() {
  if (::sigismember(&before_, SIGXFSZ) == 1) return;
  const int error = errno;  // of the call, for whoever asks
  const sigset_t own = the_signal();
  sigset_t waiting;
  const timespec at_once = {};
  if (::sigpending(&waiting) == 0 && ::sigismember(&waiting, SIGXFSZ) == 1) {
    ::sigtimedwait(&own, nullptr, &at_once);
  }
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  errno = error;
}

}  // namespace tutti
