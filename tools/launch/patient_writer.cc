// Writes to a reader that may be slow, without ever waiting for it.
// SPDX-License-Identifier: Apache-2.0
#include "tools/launch/patient_writer.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "tutti/core/file_size_limit.h"

namespace tutti::launch {

void PatientWriter::add(std::string_view text) {
  if (!is_gone_) text_ += text;
}

// The descriptor is shared with whoever gave it to us, so it stays one that blocks: a pipe that
// says it has room takes PIPE_BUF bytes without.
bool PatientWriter::write_some() {
  if (is_empty()) return !is_gone_;
  const FileSizeLimitScope error_instead_of_signal;
  while (!is_empty() && !is_gone_) {
    pollfd room{fd_, POLLOUT, 0};
    const int ready = ::poll(&room, 1, 0);
    if (ready == 0) break;
    if (ready < 0 && errno == EINTR) continue;
    const std::size_t size = std::min<std::size_t>(text_.size() - begin_, PIPE_BUF);
    const ssize_t written = ::write(fd_, text_.data() + begin_, size);
    if (written >= 0) {
      begin_ += static_cast<std::size_t>(written);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) {
      begin_ = text_.size();  // a file that can take no more: the job is worth more than its lines
    } else if (errno != EINTR) {
      is_gone_ = true;
      begin_ = text_.size();
    }
  }
  drop_written();
  return !is_gone_;
}

void PatientWriter::drop_written() {
  if (!is_empty() && begin_ < kFull) return;
  text_.erase(0, begin_);
  begin_ = 0;
}

}  // namespace tutti::launch
