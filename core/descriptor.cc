// The system's calls around descriptors of any kind.
// SPDX-License-Identifier: Apache-2.0
#include "core/descriptor.h"

#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "core/run_token.h"
#include "tutti/core/error.h"
#include "tutti/core/executor.h"

namespace tutti::internal {

FileDescriptor::~FileDescriptor() {
  if (number_ >= 0) ::close(number_);
}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}

FileDescriptor make_wake_event() {
  FileDescriptor event(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (event.is_open()) return event;
  fail(ErrorCode::kResourceExhausted, "tcp: no event of the system: ", std::strerror(errno));
}

FileDescriptor watch_process(int pid) {
#if defined(SYS_pidfd_open)
  if (pid > 0) return FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
#endif
  return FileDescriptor();
}

int poll_until(std::span<pollfd> descriptors, TimePoint deadline) {
  // "At once" is TimePoint::min(), from which now() cannot be subtracted.
  const TimePoint now = deadline == TimePoint::min() ? deadline : Clock::system().now();
  if (deadline <= now) return ::poll(descriptors.data(), descriptors.size(), 0);
  const Duration duration = std::min<Duration>(deadline - now, std::chrono::hours(1));
  const BlockedScope blocked;
  const AsleepScope asleep;
  timespec time{};
  time.tv_sec = static_cast<time_t>(duration / std::chrono::seconds(1));
  time.tv_nsec = static_cast<long>((duration % std::chrono::seconds(1)).count());
  return ::ppoll(descriptors.data(), descriptors.size(), &time, nullptr);
}

}  // namespace tutti::internal
