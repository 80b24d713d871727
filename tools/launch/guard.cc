// The guard process: a pipe's end of file tells it that the launcher is gone.
// SPDX-License-Identifier: Apache-2.0
#include "tools/launch/guard.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <vector>

#include "tutti/core/error.h"

namespace tutti::launch {
namespace {

constexpr const char* kName = "tutti guard";
constexpr int kMostPasses = 1000;

/// Of another process everything would look as if the launcher still had it open.
void close_all_but(int kept) {
  DIR* const folder = ::opendir("/proc/self/fd");
  if (!folder) return;
  std::vector<int> fds;
  while (const dirent* const entry = ::readdir(folder)) fds.push_back(std::atoi(entry->d_name));
  const int own = ::dirfd(folder);
  for (const int fd : fds) {
    if (fd != kept && fd != own) ::close(fd);
  }
  ::closedir(folder);
}

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Whether the process was started with `mark` and is no guard: one of another launcher that ran
/// within this job has work of its own to do.
bool is_marked(const std::string& process, const std::string& mark) {
  const std::string environment = '\0' + text_of("/proc/" + process + "/environ");
  if (environment.find('\0' + mark + '\0') == std::string::npos) return false;
  return text_of("/proc/" + process + "/comm") != std::string(kName) + "\n";
}

/// They may start others meanwhile, so it looks until there is none.
void kill_marked(const std::string& mark) {
  for (int pass = 0, found = 1; found > 0 && pass < kMostPasses; ++pass) {
    found = 0;
    DIR* const folder = ::opendir("/proc");
    if (!folder) return;
    while (const dirent* const entry = ::readdir(folder)) {
      const pid_t pid = std::atoi(entry->d_name);
      if (pid <= 0 || pid == ::getpid() || !is_marked(entry->d_name, mark)) continue;
      found += ::kill(pid, SIGKILL) == 0 ? 1 : 0;
    }
    ::closedir(folder);
    ::poll(nullptr, 0, found > 0 ? 1 : 0);  // until they are gone
  }
}

[[noreturn]] void stand_guard(int pipe, const std::string& folder, const std::string& file,
                              const std::string& mark) {
  ::setsid();  // signals of the terminal are not for the guard
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  ::prctl(PR_SET_NAME, kName);
  close_all_but(pipe);
  std::set<pid_t> groups;
  for (pid_t number = 0;;) {
    const ssize_t size = ::read(pipe, &number, sizeof(number));
    if (size < 0 && errno == EINTR) continue;
    if (size != sizeof(number)) break;
    if (number == 0) ::_exit(0);  // an orderly end
    if (number > 0) {
      groups.insert(number);
    } else {
      groups.erase(-number);
    }
  }
  for (const pid_t group : groups) ::kill(-group, SIGKILL);
  kill_marked(mark);
  ::unlink(file.c_str());
  ::rmdir(folder.c_str());
  ::_exit(0);
}

}  // namespace

Guard::Guard(const std::string& secret_folder, const std::string& secret_file,
             const std::string& mark) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    fail(ErrorCode::kResourceExhausted, "run: cannot make a pipe: ", ::strerror(errno));
  }
  pid_ = ::fork();
  if (pid_ == 0) {
    ::close(ends[1]);
    stand_guard(ends[0], secret_folder, secret_file, mark);
  }
  ::close(ends[0]);
  pipe_ = ends[1];
  if (pid_ > 0) return;
  ::close(pipe_);
  fail(ErrorCode::kResourceExhausted, "run: cannot fork: ", ::strerror(errno));
}

Guard::~Guard() {
  tell(0);
  ::close(pipe_);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guard::tell(pid_t number) {
  // A guard that was killed itself is no reason to stop a job.
  while (::write(pipe_, &number, sizeof(number)) < 0 && errno == EINTR) {
  }
}

void Guard::watch(pid_t group) { tell(group); }
void Guard::forget(pid_t group) { tell(-group); }

}  // namespace tutti::launch
