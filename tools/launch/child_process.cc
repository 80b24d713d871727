// Starts processes with fork and exec, and reads their output.
// SPDX-License-Identifier: Apache-2.0
//
// posix_spawn() is unsuitable, because it can neither kill the child when its parent exits nor
// choose cores. Between fork and exec, only calls that are safe in a multi-threaded process are
// made.
#include "tools/launch/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <set>
#include <sstream>

#include "core/names.h"
#include "tutti/core/error.h"

namespace tutti::launch {

using internal::FileDescriptor;

namespace {

constexpr int kPipeBytes = 1 << 20;
constexpr std::size_t kReadAtOnce = 1 << 20;
constexpr std::size_t kReadAtEnd = 64 << 20;

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
      fail(ErrorCode::kResourceExhausted, "run: cannot create a pipe: ", ::strerror(errno));
    }
    read_end = FileDescriptor(ends[0]);
    write_end = FileDescriptor(ends[1]);
  }

  FileDescriptor read_end, write_end;
};

/// Data that the child needs between fork and exec; prepared before the fork.
struct Prepared {
  std::string file;
  std::vector<char*> arguments, environment;
  cpu_set_t cores;
  bool choose_cores = false;
  pid_t parent = 0;
  int output = -1, error = -1, report = -1;
};

[[noreturn]] void exec_program(const Prepared& prepared) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != prepared.parent) ::_exit(127);  // the parent exited before prctl()
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  restore_open_files_limit();
  const int input = ::open("/dev/null", O_RDONLY);
  ::dup2(input, STDIN_FILENO);
  if (input > STDERR_FILENO) ::close(input);
  ::dup2(prepared.output, STDOUT_FILENO);
  ::dup2(prepared.error, STDERR_FILENO);
  if (prepared.choose_cores) ::sched_setaffinity(0, sizeof(cpu_set_t), &prepared.cores);
  ::execve(prepared.file.c_str(), prepared.arguments.data(), prepared.environment.data());
  const int reason = errno;
  [[maybe_unused]] const auto written = ::write(prepared.report, &reason, sizeof(reason));
  ::_exit(127);
}

std::vector<std::string> environment_with(const Variables& additions) {
  std::vector<std::string> all;
  for (const auto& [name, value] : additions) all.push_back(name + "=" + value);
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    const auto same = [&](const auto& addition) { return addition.first == name; };
    if (std::ranges::none_of(additions, same)) all.emplace_back(text);
  }
  return all;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

bool is_program(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}

[[noreturn]] void fail_no_program(const std::string& name) {
  struct stat info = {};
  std::string reason = "no such file";
  if (::stat(name.c_str(), &info) == 0) {
    reason = S_ISDIR(info.st_mode) ? "it is a folder" : "it may not be executed";
  }
  if (name.find('/') == std::string::npos) {
    reason = "not found in PATH";
    if (is_program("./" + name)) reason += concat("; use ./", name);
  }
  fail(ErrorCode::kNotFound, "run: expected a program, got '", name, "': ", reason);
}

void wait_for_exec(Pipe& report, pid_t pid, const std::string& file) {
  report.write_end.close();
  int reason = 0;
  const ssize_t size = internal::uninterrupted(
      [&] { return ::read(report.read_end.get(), &reason, sizeof(reason)); });
  if (size != sizeof(reason)) return;  // a successful exec has closed the pipe
  ::waitpid(pid, nullptr, 0);
  fail(ErrorCode::kNotFound, "run: cannot start '", file, "': ", ::strerror(reason));
}

}  // namespace

std::string signal_name(int number) {
  const char* const name = ::sigabbrev_np(number);
  return name ? concat("SIG", name) : concat("signal ", number);
}

bool ExitStatus::killed_from_outside() const {
  constexpr std::array kOfOwnErrors = {0,      SIGABRT, SIGBUS, SIGFPE,
                                       SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
  return std::ranges::find(kOfOwnErrors, signal) == kOfOwnErrors.end();
}

std::string ExitStatus::to_string() const {
  if (signal != 0) return concat("killed by signal ", signal, " (", signal_name(signal), ")");
  return concat("exited with code ", code);
}

ExitStatus exit_status_of(int wait_status) {
  if (WIFSIGNALED(wait_status)) return {0, WTERMSIG(wait_status)};
  return {WEXITSTATUS(wait_status), 0};
}

void LineBuffer::append(std::string_view bytes, const OnLine& on_line) {
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    const bool whole = end != std::string_view::npos;
    const std::string_view piece = bytes.substr(0, whole ? end : bytes.size());
    const std::size_t room = kMaxLine - rest_.size();
    rest_.append(piece.substr(0, room));
    if (piece.size() > room) {
      on_line(rest_);
      rest_.clear();
      bytes.remove_prefix(room);
      continue;
    }
    bytes.remove_prefix(piece.size() + (whole ? 1 : 0));
    if (!whole) break;
    on_line(rest_);
    rest_.clear();
  }
}

void LineBuffer::finish(const OnLine& on_line) {
  if (!rest_.empty()) on_line(rest_);
  rest_.clear();
}

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    if (!is_program(name)) fail_no_program(name);
    return name;
  }
  const char* const path = std::getenv("PATH");
  for (const std::string& folder : split_text(path ? path : "/usr/bin:/bin", ':')) {
    const std::string file = folder.empty() ? name : concat(folder, "/", name);
    if (is_program(file)) return file;
  }
  fail_no_program(name);
}

ChildProcess::ChildProcess(const ChildOptions& options) {
  TUTTI_CHECK(!options.arguments.empty(), "ChildProcess: expected a program, got none");
  Prepared prepared;
  prepared.file = find_program(options.arguments.front());
  std::vector<std::string> arguments = options.arguments;
  std::vector<std::string> environment = environment_with(options.environment);
  prepared.arguments = pointers_to(arguments);
  prepared.environment = pointers_to(environment);
  CPU_ZERO(&prepared.cores);
  for (const int core : options.cores) CPU_SET(static_cast<std::size_t>(core), &prepared.cores);
  prepared.choose_cores = !options.cores.empty();
  prepared.parent = ::getpid();
  Pipe output, error, report;
  prepared.output = output.write_end.get();
  prepared.error = error.write_end.get();
  prepared.report = report.write_end.get();
  pid_ = ::fork();
  if (pid_ == 0) exec_program(prepared);
  if (pid_ < 0) fail(ErrorCode::kResourceExhausted, "run: cannot fork: ", ::strerror(errno));
  wait_for_exec(report, pid_, prepared.file);
  for (Pipe* pipe : {&output, &error}) {
    ::fcntl(pipe->read_end.get(), F_SETFL, O_NONBLOCK);
    ::fcntl(pipe->read_end.get(), F_SETPIPE_SZ, kPipeBytes);  // may fail if the user has many pipes
  }
  fds_[0] = std::move(output.read_end);
  fds_[1] = std::move(error.read_end);
}

ChildProcess::~ChildProcess() {
  if (!status_) {
    ::kill(-pid_, SIGKILL);
    (void)internal::uninterrupted([&] { return ::waitpid(pid_, nullptr, 0); });
  }
}

void ChildProcess::send(int signal_number) {
  if (!status_) ::kill(-pid_, signal_number);
}

bool ChildProcess::has_ended() const {
  if (status_) return true;
  siginfo_t info = {};
  return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid != 0;
}

bool ChildProcess::is_ending() const {
  if (has_ended()) return true;
  // "4711 (name) S 1 ...": the flags are the seventh field after the name.
  const std::string stat = read_file_if_any(concat("/proc/", pid_, "/stat"));
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return false;
  std::istringstream fields(stat.substr(name_end + 1));
  std::string field;
  for (int i = 0; i < 7; ++i) fields >> field;
  constexpr unsigned long kExiting = 0x4;  // PF_EXITING
  return (std::strtoul(field.c_str(), nullptr, 10) & kExiting) != 0;
}

std::optional<ExitStatus> ChildProcess::try_wait() {
  if (status_) return status_;
  // Do not reap the process yet: it keeps its pid while the other processes of the group are
  // killed.
  if (!has_ended()) return std::nullopt;
  ::kill(-pid_, SIGKILL);
  int wait_status = 0;
  (void)internal::uninterrupted([&] { return ::waitpid(pid_, &wait_status, 0); });
  status_ = exit_status_of(wait_status);
  return status_;
}

void ChildProcess::read_stream(Stream stream, std::size_t max_bytes, const OnLine& on_line) {
  FileDescriptor& output = fds_[static_cast<std::size_t>(stream)];
  LineBuffer& lines = lines_[static_cast<std::size_t>(stream)];
  std::array<char, 64 * 1024> bytes;
  for (std::size_t total = 0; output.is_open() && total < max_bytes;) {
    const ssize_t size =
        internal::uninterrupted([&] { return ::read(output.get(), bytes.data(), bytes.size()); });
    if (size < 0 && errno == EAGAIN) return;
    if (size <= 0) {
      output.close();
      return;
    }
    total += static_cast<std::size_t>(size);
    lines.append({bytes.data(), static_cast<std::size_t>(size)},
                 [&](std::string_view line) { on_line(stream, line); });
  }
}

void ChildProcess::read_lines(const OnLine& on_line) {
  for (const Stream stream : {Stream::kOutput, Stream::kError}) {
    read_stream(stream, kReadAtOnce, on_line);
  }
}

void ChildProcess::finish_lines(const OnLine& on_line) {
  for (const Stream stream : {Stream::kOutput, Stream::kError}) {
    read_stream(stream, kReadAtEnd, on_line);
    lines_[static_cast<std::size_t>(stream)].finish(
        [&](std::string_view line) { on_line(stream, line); });
  }
}

namespace {

// Open files per process: two pipes, a connection to the control server and its replacement, and
// a reserved port.
constexpr rlim_t kPerProcess = 5;
constexpr rlim_t kForTheRest = 64;

rlimit limit_before = {0, 0};
bool is_raised = false;

/// Returns the children of this process, from the kernel's per-thread lists of children.
std::vector<pid_t> children() {
  std::vector<pid_t> found;
  for (const std::string& thread : names_in_folder("/proc/self/task")) {
    // The text is empty for a thread that has ended, and on kernels without these lists.
    std::istringstream numbers(read_file_if_any(concat("/proc/self/task/", thread, "/children")));
    for (pid_t pid = 0; numbers >> pid;) found.push_back(pid);
  }
  return found;
}

constexpr const char* kName = "tutti guard";
constexpr int kMostPasses = 1000;

/// Returns the numeric entries of a folder in /proc.
std::vector<int> numbers_in(const char* folder) {
  std::vector<int> numbers;
  for (const std::string& name : names_in_folder(folder)) {
    if (name[0] >= '0' && name[0] <= '9') numbers.push_back(std::atoi(name.c_str()));
  }
  return numbers;
}

/// Closes all descriptors except `kept`; otherwise the launcher's files would stay open while the
/// guard runs.
void close_all_but(int kept) {
  for (const int fd : numbers_in("/proc/self/fd")) {
    if (fd != kept) ::close(fd);
  }
}

/// Returns true if the process was started with `mark` and is not a guard. The guard of a launcher
/// that runs within this job must not be killed, because it must still clean up.
bool is_marked(pid_t pid, const std::string& mark) {
  const std::string process = concat("/proc/", pid);
  const std::string environment = '\0' + read_file_if_any(process + "/environ");
  if (environment.find('\0' + mark + '\0') == std::string::npos) return false;
  return read_file_if_any(process + "/comm") != std::string(kName) + "\n";
}

/// Kills all processes marked with `mark`. Searches again until none is found (at most kMostPasses
/// times), because a process may start another one during the search.
void kill_marked(const std::string& mark) {
  for (int pass = 0, found = 1; found > 0 && pass < kMostPasses; ++pass) {
    found = 0;
    for (const pid_t pid : numbers_in("/proc")) {
      if (pid == ::getpid() || !is_marked(pid, mark)) continue;
      found += ::kill(pid, SIGKILL) == 0 ? 1 : 0;
    }
    ::poll(nullptr, 0, found > 0 ? 1 : 0);  // gives killed processes time to exit
  }
}

[[noreturn]] void run_guard(int pipe, const std::string& folder, const std::string& file,
                            const std::string& mark) {
  ::setsid();  // shields the guard from the terminal's signals
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  ::prctl(PR_SET_NAME, kName);
  close_all_but(pipe);
  std::set<pid_t> groups;
  for (pid_t number = 0;;) {
    if (internal::uninterrupted([&] { return ::read(pipe, &number, sizeof(number)); }) !=
        sizeof(number))
      break;
    if (number == 0) ::_exit(0);  // the launcher ended normally
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
  std::istringstream lines(read_file_if_any(file));  // not every machine has all files
  for (std::string name; lines >> name;) {
    long value = 0;
    if (!(lines >> value)) break;
    if (name == "oom_kill") return value;
  }
  return std::nullopt;
}

/// Returns the files that count OOM kills for the cgroups listed in /proc/self/cgroup. That file's
/// lines are "4:memory:/path" or "0::/path".
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
      files.push_back("/sys/fs/cgroup/memory/memory.oom_control");  // path inside a container
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
    // open() returns the lowest free descriptor, which is `fd`.
    if (::fcntl(fd, F_GETFD) < 0) (void)!::open("/dev/null", O_RDWR);
  }
}

void allow_open_files_for(int num_processes) {
  const rlim_t needed = kPerProcess * static_cast<rlim_t>(num_processes) + kForTheRest;
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  rlimit raised = limit;
  raised.rlim_cur = std::min(needed, limit.rlim_max);
  internal::require(raised.rlim_cur >= needed && ::setrlimit(RLIMIT_NOFILE, &raised) == 0,
                    "run: ", num_processes, " processes: expected a limit of ", needed,
                    " open files, got ", limit.rlim_max, "; try a higher hard limit (ulimit -Hn ",
                    needed, "), or fewer processes");
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
    if (number == SIGCHLD && ignored)
      ::signal(SIGCHLD, SIG_DFL);  // if SIGCHLD is ignored, waitpid() returns no exit status
    if (!ignored || number == SIGCHLD) ::sigaddset(&wanted, number);
  }
  ::signal(SIGPIPE, SIG_IGN);
  ::sigprocmask(SIG_BLOCK, &wanted, &previous_);
  fd_ = FileDescriptor(::signalfd(-1, &wanted, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!fd_.is_open()) {
    fail(ErrorCode::kUnavailable, "run: cannot create a signalfd: ", ::strerror(errno));
  }
}

SignalQueue::~SignalQueue() { ::sigprocmask(SIG_SETMASK, &previous_, nullptr); }

std::vector<int> SignalQueue::take() {
  std::vector<int> numbers;
  signalfd_siginfo info = {};
  while (::read(fd_.get(), &info, sizeof(info)) == sizeof(info)) {
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
  Pipe pipe;
  pid_ = ::fork();
  if (pid_ == 0) {
    pipe.write_end.close();
    run_guard(pipe.read_end.get(), secret_folder, secret_file, mark);
  }
  if (pid_ < 0) fail(ErrorCode::kResourceExhausted, "run: cannot fork: ", ::strerror(errno));
  pipe_ = std::move(pipe.write_end);
}

Guard::~Guard() {
  write_pid(0);
  pipe_.close();
  (void)internal::uninterrupted([&] { return ::waitpid(pid_, nullptr, 0); });
}

void Guard::write_pid(pid_t number) {
  // Ignore errors: a killed guard must not stop the job.
  (void)internal::uninterrupted([&] { return ::write(pipe_.get(), &number, sizeof(number)); });
}

void Guard::watch(pid_t group) { write_pid(group); }
void Guard::forget(pid_t group) { write_pid(-group); }

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

long OomCounter::count_new_kills() {
  const long now = read().value_or(last_);
  return now - std::exchange(last_, now);
}

std::string OomCounter::describe(long kills) const {
  return concat(of_cgroup_ ? "cgroup " : "", "oom_kill +", kills,
                of_cgroup_ ? "" : " on this machine");
}

}  // namespace tutti::launch
