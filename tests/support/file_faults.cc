// Interposes libc's functions that change files.
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/file_faults.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tutti/core/sync.h"

namespace tutti::file_faults {
namespace {

constexpr int kMaxCalls = 4096;
constexpr int kMaxPath = 512;

/// Directory entry or file contents that a power cut would lose unless synced first.
struct Loss {
  enum Kind { kNone, kBytes, kNewName, kNewFolder, kRename } kind;
  char path[kMaxPath];
  char before[kMaxPath];  // old name, for a rename
  off_t size;             // size of the file before the bytes were written
};

// These variables are constant-initialized, because intercepted calls may run on any thread and
// before static constructors.
std::atomic<bool> armed{false};
char folder[kMaxPath];
Action action;
int first_call, last_call;
std::atomic<int> num_calls{0};
char call_lines[kMaxCalls][kMaxPath];
Mutex losses_mutex;
Loss losses[kMaxCalls] TUTTI_GUARDED_BY(losses_mutex);
int num_losses TUTTI_GUARDED_BY(losses_mutex) = 0;

void copy(char* to, const char* from) { std::snprintf(to, kMaxPath, "%s", from); }

bool is_below(const char* path) {
  const std::size_t length = std::strlen(folder);
  return std::strncmp(path, folder, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

void path_of(int fd, char* path) {
  char link[64];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const long length = ::syscall(SYS_readlink, link, path, kMaxPath - 1);
  path[length > 0 ? length : 0] = '\0';
}

void path_at(int fd, const char* name, char* path) {
  if (name[0] == '/' || fd == AT_FDCWD) return copy(path, name);
  path_of(fd, path);
  const std::size_t length = std::strlen(path);
  std::snprintf(path + length, kMaxPath - length, "/%s", name);
}

bool is_in(const char* path, const char* parent) {
  const char* slash = std::strrchr(path, '/');
  const auto length = slash ? static_cast<std::size_t>(slash - path) : 0;
  return std::strlen(parent) == length && std::strncmp(path, parent, length) == 0;
}

void lose(Loss::Kind kind, const char* path, const char* before = "", off_t size = 0) {
  const MutexLock lock(losses_mutex);
  const int index = num_losses++;
  if (index >= kMaxCalls) std::abort();
  losses[index].kind = kind;
  copy(losses[index].path, path);
  copy(losses[index].before, before);
  losses[index].size = size;
}

void keep(const char* synced) {
  const MutexLock lock(losses_mutex);
  for (int i = 0; i < num_losses; ++i) {
    const bool is_file = losses[i].kind == Loss::kBytes;
    if (is_file ? std::strcmp(losses[i].path, synced) == 0 : is_in(losses[i].path, synced)) {
      losses[i].kind = Loss::kNone;
    }
  }
}

void move_losses(const char* from, const char* to) {
  const MutexLock lock(losses_mutex);
  for (int i = 0; i < num_losses; ++i) {
    if (std::strcmp(losses[i].path, from) == 0 && losses[i].kind == Loss::kBytes) {
      copy(losses[i].path, to);
    }
  }
}

void take_away(const Loss& loss) {
  struct stat status;
  switch (loss.kind) {
    case Loss::kNone:
      return;
    case Loss::kBytes:
      if (::stat(loss.path, &status) == 0 && status.st_size > loss.size) {
        ::syscall(SYS_truncate, loss.path, loss.size + (status.st_size - loss.size) / 2);
      }
      return;
    case Loss::kNewName:
      ::syscall(SYS_unlink, loss.path);
      return;
    case Loss::kNewFolder:
      ::syscall(SYS_rmdir, loss.path);
      return;
    case Loss::kRename:
      ::syscall(SYS_rename, loss.path, loss.before);
  }
}

[[noreturn]] void end_process() {
  // The lock is held until exit, so that other threads record no more losses.
  const MutexLock lock(losses_mutex);
  if (action == Action::kPowerCut) {
    for (int i = num_losses; i-- > 0;) take_away(losses[i]);
  }
  ::kill(::getpid(), SIGKILL);
  for (;;) ::pause();
}

/// Counts a call on `path`. Returns 0, or the error that the call must return.
int count(const char* name, const char* path) {
  if (!armed.load(std::memory_order_relaxed) || !is_below(path)) return 0;
  const int number = num_calls.fetch_add(1) + 1;
  if (number > kMaxCalls) std::abort();
  std::snprintf(call_lines[number - 1], kMaxPath, "%s %s", name, path);
  if (action == Action::kCount || number < first_call || number > last_call) return 0;
  switch (action) {
    case Action::kNoSpace:
      return ENOSPC;
    case Action::kIoError:
      return EIO;
    case Action::kReadOnly:
      return EROFS;
    default:
      end_process();
  }
}

bool is_watched(const char* path) { return armed && is_below(path); }

int refuse(int error) {
  errno = error;
  return -1;
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

int open_at(const char* name, int at, const char* file, int flags, mode_t mode) {
  char path[kMaxPath];
  path_at(at, file, path);
  const bool changes = (flags & (O_CREAT | O_TRUNC)) != 0 || (flags & O_ACCMODE) != O_RDONLY;
  if (changes) {
    if (const int error = count(name, path)) return refuse(error);
  }
  struct stat status;
  const bool is_new = changes && is_watched(path) && ::lstat(path, &status) != 0;
  const int fd = static_cast<int>(::syscall(SYS_openat, at, file, flags, mode));
  if (fd >= 0 && is_new) lose(Loss::kNewName, path);
  return fd;
}

mode_t mode_of(int flags, va_list arguments) {
  return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(arguments, mode_t) : 0;
}

int remove_at(const char* name, int at, const char* file, int flags) {
  char path[kMaxPath];
  path_at(at, file, path);
  if (const int error = count(name, path)) return refuse(error);
  return static_cast<int>(::syscall(SYS_unlinkat, at, file, flags));
}

int make_folder_at(const char* name, int at, const char* file, mode_t mode) {
  char path[kMaxPath];
  path_at(at, file, path);
  if (const int error = count(name, path)) return refuse(error);
  const int result = static_cast<int>(::syscall(SYS_mkdirat, at, file, mode));
  if (result == 0 && is_watched(path)) lose(Loss::kNewFolder, path);
  return result;
}

int rename_at(const char* name, int from_at, const char* from, int to_at, const char* to) {
  char path[kMaxPath], before[kMaxPath];
  path_at(to_at, to, path);
  path_at(from_at, from, before);
  if (const int error = count(name, path)) return refuse(error);
  struct stat status;
  // A file replaced by the rename cannot be restored.
  const bool replaces = ::lstat(path, &status) == 0;
  const int result = static_cast<int>(::syscall(SYS_renameat, from_at, from, to_at, to));
  if (result != 0 || !is_watched(path)) return result;
  move_losses(before, path);
  if (!replaces) lose(Loss::kRename, path, before);
  return result;
}

int sync(const char* name, int fd) {
  char path[kMaxPath];
  path_of(fd, path);
  if (const int error = count(name, path)) return refuse(error);
  if (!is_watched(path)) return static_cast<int>(::syscall(SYS_fsync, fd));
  keep(path);
  return 0;
}

__attribute__((constructor)) void arm_by_environment() {
  const char* under = std::getenv("TUTTI_FAULTS_UNDER");
  const char* what = std::getenv("TUTTI_FAULTS_DO");
  const char* first = std::getenv("TUTTI_FAULTS_FIRST");
  const char* last = std::getenv("TUTTI_FAULTS_LAST");
  if (!under || !what || !first) return;
  constexpr const char* kNames[] = {"count", "kill", "power_cut", "enospc", "eio", "erofs"};
  for (int i = 0; i < 6; ++i) {
    if (std::strcmp(what, kNames[i]) != 0) continue;
    return arm(under, static_cast<Action>(i), std::atoi(first), std::atoi(last ? last : first));
  }
  std::fprintf(stderr,
               "TUTTI_FAULTS_DO: expected count, kill, power_cut, enospc, eio or erofs, got '%s'\n",
               what);
  std::abort();
}

}  // namespace

void arm(const std::string& under, Action what, int first, int last) {
  copy(folder, under.c_str());
  action = what;
  first_call = first;
  last_call = std::max(first, last);
  num_calls = 0;
  {
    const MutexLock lock(losses_mutex);
    num_losses = 0;
  }
  armed = true;
}

void disarm() { armed = false; }

std::vector<std::string> calls() {
  return std::vector<std::string>(call_lines, call_lines + num_calls.load());
}

}  // namespace tutti::file_faults

using namespace tutti::file_faults;

extern "C" {

int open(const char* file, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_at("open", AT_FDCWD, file, flags, mode);
}

int openat(int at, const char* file, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_at("openat", at, file, flags, mode);
}

ssize_t write(int fd, const void* bytes, size_t size) {
  static const auto real = next<ssize_t(int, const void*, size_t)>("write");
  if (!armed) return real(fd, bytes, size);
  char path[kMaxPath];
  path_of(fd, path);
  if (!is_watched(path)) return real(fd, bytes, size);
  const int error = count("write", path);
  if (error != 0 && (error != ENOSPC || size < 2 || num_calls > first_call)) return refuse(error);
  struct stat status;
  lose(Loss::kBytes, path, "", ::fstat(fd, &status) == 0 ? status.st_size : 0);
  return real(fd, bytes, error != 0 ? size / 2 : size);
}

int fallocate(int fd, int mode, off_t offset, off_t length) {
  char path[kMaxPath];
  path_of(fd, path);
  if (const int error = count("fallocate", path)) return refuse(error);
  return static_cast<int>(::syscall(SYS_fallocate, fd, mode, offset, length));
}

int fsync(int fd) { return sync("fsync", fd); }
int fdatasync(int fd) { return sync("fdatasync", fd); }

int close(int fd) {
  if (!armed) return static_cast<int>(::syscall(SYS_close, fd));
  char path[kMaxPath];
  path_of(fd, path);
  const bool written = (::fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY;
  const int error = written ? count("close", path) : 0;
  const int result = static_cast<int>(::syscall(SYS_close, fd));
  return error != 0 ? refuse(error) : result;
}

int rename(const char* from, const char* to) noexcept {
  return rename_at("rename", AT_FDCWD, from, AT_FDCWD, to);
}
int renameat(int from_at, const char* from, int to_at, const char* to) noexcept {
  return rename_at("renameat", from_at, from, to_at, to);
}

int unlink(const char* file) noexcept { return remove_at("unlink", AT_FDCWD, file, 0); }
int rmdir(const char* file) noexcept { return remove_at("rmdir", AT_FDCWD, file, AT_REMOVEDIR); }
int unlinkat(int at, const char* file, int flags) noexcept {
  return remove_at("unlinkat", at, file, flags);
}

int mkdir(const char* file, mode_t mode) noexcept {
  return make_folder_at("mkdir", AT_FDCWD, file, mode);
}
int mkdirat(int at, const char* file, mode_t mode) noexcept {
  return make_folder_at("mkdirat", at, file, mode);
}

}  // extern "C"
