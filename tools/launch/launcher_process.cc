// Signals through a signalfd, limits of open files, the guard process, children without parents.
// SPDX-License-Identifier: Apache-2.0
#include "tools/launch/launcher_process.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <utility>

#include "core/file.h"
#include "tutti/core/error.h"

namespace tutti::launch {
namespace {

// Two pipes and a connection to the control server, which may be made anew; and a port at first.
constexpr rlim_t kPerProcess = 4;
constexpr rlim_t kForTheRest = 64;

rlimit limit_before = {0, 0};
bool is_raised = false;

/// Children of all threads of this process, as the kernel lists them.
std::vector<pid_t> children() {
  std::vector<pid_t> found;
  std::error_code ignored;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", ignored)) {
    // Nothing of a thread that has ended, and of kernels without these lists.
    std::istringstream numbers(read_file_if_any(thread.path() / "children"));
    for (pid_t pid = 0; numbers >> pid;) found.push_back(pid);
  }
  return found;
}

constexpr const char* kName = "tutti guard";
constexpr int kMostPasses = 1000;

/// The entries of a folder of /proc that are numbers.
std::vector<int> numbers_in(const char* folder) {
  std::vector<int> numbers;
  DIR* const entries = ::opendir(folder);
  if (!entries) return numbers;
  while (const dirent* const entry = ::readdir(entries)) {
    if (entry->d_name[0] >= '0' && entry->d_name[0] <= '9') {
      numbers.push_back(std::atoi(entry->d_name));
    }
  }
  ::closedir(entries);
  return numbers;
}

/// Of another process everything would look as if the launcher still had it open.
void close_all_but(int kept) {
  for (const int fd : numbers_in("/proc/self/fd")) {
    if (fd != kept) ::close(fd);
  }
}

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Whether the process was started with `mark` and is no guard: one of another launcher that ran
/// within this job has work of its own to do.
bool is_marked(pid_t pid, const std::string& mark) {
  const std::string process = concat("/proc/", pid);
  const std::string environment = '\0' + text_of(process + "/environ");
  if (environment.find('\0' + mark + '\0') == std::string::npos) return false;
  return text_of(process + "/comm") != std::string(kName) + "\n";
}

/// They may start others meanwhile, so it looks until there is none.
void kill_marked(const std::string& mark) {
  for (int pass = 0, found = 1; found > 0 && pass < kMostPasses; ++pass) {
    found = 0;
    for (const pid_t pid : numbers_in("/proc")) {
      if (pid == ::getpid() || !is_marked(pid, mark)) continue;
      found += ::kill(pid, SIGKILL) == 0 ? 1 : 0;
    }
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

std::optional<long> counter_in(const std::string& file) {
  std::istringstream lines(read_file_if_any(file));  // not every machine has every file
  for (std::string name; lines >> name;) {
    long value = 0;
    if (!(lines >> value)) break;
    if (name == "oom_kill") return value;
  }
  return std::nullopt;
}

/// Files of the groups that /proc/self/cgroup names: "4:memory:/path", "0::/path".
std::vector<std::string> files_of_cgroups() {
  std::vector<std::string> files;
  std::istringstream lines(read_file_if_any("/proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    if (controllers == "memory") {
      files.push_back(concat("/sys/fs/cgroup/memory", path, "/memory.oom_control"));
      files.push_back("/sys/fs/cgroup/memory/memory.oom_control");  // inside a container
    } else if (controllers.empty()) {
      files.push_back(concat("/sys/fs/cgroup", path, "/memory.events"));
      files.push_back("/sys/fs/cgroup/memory.events");
    }
  }
  return files;
}

}  // namespace

void open_standard_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    // The lowest free number is this one.
    if (::fcntl(fd, F_GETFD) < 0) (void)!::open("/dev/null", O_RDWR);
  }
}

void allow_open_files_for(int num_processes) {
  const rlim_t needed = kPerProcess * static_cast<rlim_t>(num_processes) + kForTheRest;
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  rlimit raised = limit;
  raised.rlim_cur = std::min(needed, limit.rlim_max);
  if (raised.rlim_cur < needed || ::setrlimit(RLIMIT_NOFILE, &raised) != 0) {
    fail(ErrorCode::kInvalidArgument, "run: ", num_processes, " processes: expected a limit of ",
         needed, " open files, got ", limit.rlim_max, "; try a higher hard limit (ulimit -Hn ",
         needed, "), or fewer processes");
  }
  limit_before = limit;
  is_raised = true;
}

void restore_open_files_limit() {
  if (is_raised) ::setrlimit(RLIMIT_NOFILE, &limit_before);
}

SignalQueue::SignalQueue() {
  sigset_t wanted;
  ::sigemptyset(&wanted);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD}) {
    struct sigaction action = {};
    ::sigaction(number, nullptr, &action);
    const bool ignored = action.sa_handler == SIG_IGN;
    if (number == SIGCHLD && ignored) ::signal(SIGCHLD, SIG_DFL);  // else there is no exit status
    if (!ignored || number == SIGCHLD) ::sigaddset(&wanted, number);
  }
  ::signal(SIGPIPE, SIG_IGN);
  ::sigprocmask(SIG_BLOCK, &wanted, &previous_);
  fd_ = ::signalfd(-1, &wanted, SFD_NONBLOCK | SFD_CLOEXEC);
  if (fd_ < 0) fail(ErrorCode::kUnavailable, "run: no signalfd: ", ::strerror(errno));
}

SignalQueue::~SignalQueue() {
  ::close(fd_);
  ::sigprocmask(SIG_SETMASK, &previous_, nullptr);
}

std::vector<int> SignalQueue::take() {
  std::vector<int> numbers;
  signalfd_siginfo info = {};
  while (::read(fd_, &info, sizeof(info)) == sizeof(info)) {
    numbers.push_back(static_cast<int>(info.ssi_signo));
  }
  return numbers;
}

void reap_adopted(const std::vector<pid_t>& own) {
  for (;;) {
    siginfo_t info = {};
    const int error = ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT);
    if (error != 0 || info.si_pid == 0 || std::ranges::count(own, info.si_pid) > 0) return;
    ::waitpid(info.si_pid, nullptr, 0);
  }
}

void end_adopted(const std::vector<pid_t>& own) {
  for (bool any = true; any;) {
    any = false;
    for (const pid_t pid : children()) {
      if (std::ranges::count(own, pid) > 0) continue;
      ::kill(pid, SIGKILL);
      any = ::waitpid(pid, nullptr, 0) == pid || any;
    }
  }
}

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

OomCounter::OomCounter() {
  for (const std::string& file : files_of_cgroups()) {
    if (!counter_in(file)) continue;
    file_ = file;
    of_cgroup_ = true;
    break;
  }
  if (file_.empty()) file_ = "/proc/vmstat";
  last_ = read().value_or(0);
}

std::optional<long> OomCounter::read() const { return counter_in(file_); }

long OomCounter::take_new_kills() {
  const long now = read().value_or(last_);
  return now - std::exchange(last_, now);
}

std::string OomCounter::describe(long kills) const {
  return concat(of_cgroup_ ? "cgroup " : "", "oom_kill +", kills,
                of_cgroup_ ? "" : " on this machine");
}

}  // namespace tutti::launch
