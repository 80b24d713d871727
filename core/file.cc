// Implements reading and atomic writing of whole files, and the user's file size limit.
// SPDX-License-Identifier: Apache-2.0
#include "core/file.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <limits>
#include <system_error>

#include "core/run_token.h"
#include "tutti/core/error.h"
#include "tutti/core/executor.h"

namespace tutti {

// Reading and writing of whole files through POSIX calls; errors state the cause.

namespace {

using internal::FileDescriptor;

[[noreturn]] void fail_with_errno(const char* action, const std::string& path) {
  const int reason = errno;
  const ErrorCode code = reason == ENOENT ? ErrorCode::kNotFound : ErrorCode::kUnavailable;
  fail(code, "cannot ", action, " '", path, "': ", std::generic_category().message(reason));
}

std::string temporary_name(const std::string& path) {
  static std::atomic<unsigned> number{0};
  return concat(path, ".tmp.", ::getpid(), ".", number.fetch_add(1));
}

bool write_and_sync(const std::string& path, std::string_view bytes) {
  FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (file.get() < 0) return false;
  return internal::write_all(file.get(), std::as_bytes(std::span(bytes))) &&
         ::fsync(file.get()) == 0 && file.close();
}

/// Makes renames in `folder` survive a power cut. Ignores errors, because some file systems cannot
/// sync folders (EINVAL).
void sync_folder(const std::filesystem::path& folder) {
  FileDescriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor.get() >= 0) ::fsync(descriptor.get());
}

}  // namespace

std::string read_file(const std::string& path) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) fail_with_errno("read", path);
  std::string bytes;
  struct stat information;
  if (::fstat(file.get(), &information) == 0 && information.st_size > 0) {
    bytes.reserve(static_cast<std::size_t>(information.st_size) + 1);
  }
  // Read to the end instead of trusting the reported size: files in /proc report 0.
  constexpr std::size_t kChunk = 1 << 16;
  for (;;) {
    const std::size_t size = bytes.size();
    const std::size_t chunk = std::max(kChunk, bytes.capacity() - size);
    bytes.resize(size + chunk);
    const ssize_t count =
        internal::uninterrupted([&] { return ::read(file.get(), bytes.data() + size, chunk); });
    bytes.resize(size + (count > 0 ? static_cast<std::size_t>(count) : 0));
    if (count == 0) return bytes;
    if (count < 0) fail_with_errno("read", path);
  }
}

std::string read_file_if_any(const std::string& path) {
  try {
    return read_file(path);
  } catch (const Error&) {
    return "";
  }
}

std::vector<std::string> names_in_folder(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename());
  }
  return names;
}

void write_file_atomically(const std::string& path, std::string_view bytes) {
  const auto folder = std::filesystem::absolute(path).parent_path();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    fail(ErrorCode::kUnavailable, "write_file_atomically: cannot create folder '", folder.string(),
         "': ", error.message());
  }
  const std::string temporary = temporary_name(path);
  if (write_and_sync(temporary, bytes) && ::rename(temporary.c_str(), path.c_str()) == 0) {
    sync_folder(folder);
    return;
  }
  const int reason = errno;
  ::unlink(temporary.c_str());
  fail(ErrorCode::kUnavailable, "write_file_atomically: cannot write '", path,
       "': ", std::generic_category().message(reason));
}

// File size limit.

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
  const int error = errno;  // errno of the caller's system call
  const sigset_t own = the_signal();
  sigset_t waiting;
  const timespec at_once = {};
  if (::sigpending(&waiting) == 0 && ::sigismember(&waiting, SIGXFSZ) == 1) {
    ::sigtimedwait(&own, nullptr, &at_once);
  }
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  errno = error;
}

namespace internal {

bool FileDescriptor::close() {
  const int fd = release();
  return fd < 0 || ::close(fd) == 0;
}

bool write_all(int fd, std::span<const std::byte> bytes) {
  const FileSizeLimitScope error_instead_of_signal;
  while (!bytes.empty()) {
    const ssize_t count = uninterrupted([&] { return ::write(fd, bytes.data(), bytes.size()); });
    if (count < 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return true;
}

FileDescriptor make_wake_event() {
  FileDescriptor event(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (event.is_open()) return event;
  fail(ErrorCode::kResourceExhausted,
       "make_wake_event: cannot create an eventfd: ", std::strerror(errno),
       "; if too many files are open, raise the limit (ulimit -n)");
}

FileDescriptor watch_process(int pid) {
#if defined(SYS_pidfd_open)
  if (pid > 0) return FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
#endif
  return FileDescriptor();
}

int poll_until(std::span<pollfd> descriptors, TimePoint deadline) {
  // A deadline of TimePoint::min() means "do not wait"; subtracting now() from it would overflow.
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

}  // namespace internal
}  // namespace tutti
