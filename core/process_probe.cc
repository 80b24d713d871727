// Inspection of processes through /proc, and of threads through signals.
// SPDX-License-Identifier: Apache-2.0
#include "core/process_probe.h"

#include <execinfo.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>
#include <sstream>
#include <vector>

#include "core/file.h"
#include "core/names.h"
#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/random.h"
#include "tutti/core/sync.h"
#include "tutti/core/text.h"

namespace tutti::internal {
namespace {

namespace fs = std::filesystem;

struct StatLine {
  char letter = '?';
  std::uint64_t start_time = 0;
};

/// Parses "812 (name) S 1 ...". A name may contain any character, so fields are counted from the
/// last closing parenthesis.
std::optional<StatLine> read_stat(const std::string& path) {
  const std::string line = read_file_if_any(path);
  const std::size_t bracket = line.rfind(')');
  if (bracket == line.npos) return std::nullopt;
  std::istringstream words(line.substr(bracket + 1));
  StatLine found;
  words >> found.letter;
  std::string word;
  for (int field = 4; field < 22; ++field) words >> word;
  if (!(words >> found.start_time)) return std::nullopt;
  return found;
}

/// Returns the state letter of a busy thread: R (running or runnable) or D (waiting in the kernel).
/// If all threads sleep, returns `of_process`, the letter of the process.
char busiest_letter(std::int64_t pid, char of_process) {
  const auto is_busy = [](char letter) { return letter == 'R' || letter == 'D'; };
  if (is_busy(of_process)) return of_process;
  const std::string threads = concat("/proc/", pid, "/task/");
  for (const std::string& thread : names_in_folder(threads)) {
    const auto stat = read_stat(concat(threads, thread, "/stat"));
    if (stat && is_busy(stat->letter)) return stat->letter;
  }
  return of_process;
}

std::string read_link(const fs::path& path) {
  std::error_code error;
  const fs::path target = fs::read_symlink(path, error);
  return error ? "" : target.string();
}

std::string host_name() {
  std::array<char, 256> name{};
  (void)::gethostname(name.data(), name.size() - 1);
  return name.data();
}

ProcessIdentity find_out() {
  ProcessIdentity self;
  self.pid = ::getpid();
  if (const auto stat = read_stat("/proc/self/stat")) self.start_time = stat->start_time;
  self.host = host_name();
  self.boot_id = read_file_if_any("/proc/sys/kernel/random/boot_id");
  self.boot_id = self.boot_id.substr(0, self.boot_id.find('\n'));
  // Each container on a machine has its own PID namespace.
  self.machine = concat(self.boot_id, " ", read_link("/proc/self/ns/pid"));
  self.unique = new_unique_name();
  return self;
}

/// Returns the sockets that listen on `port`, in the form of /proc/<pid>/fd: "socket:[4711]".
std::vector<std::string> listening_sockets(int port) {
  std::vector<std::string> found;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    for (const std::string& line : split_text(read_file_if_any(table), '\n')) {
      std::istringstream words(line);
      std::array<std::string, 10> field;
      for (std::string& word : field) words >> word;
      const std::size_t colon = field[1].rfind(':');
      const bool listens = field[3] == "0A" && colon != std::string::npos;
      if (listens && std::strtol(field[1].c_str() + colon + 1, nullptr, 16) == port) {
        found.push_back(concat("socket:[", field[9], "]"));
      }
    }
  }
  return found;
}

bool has_one_of(const std::string& process, const std::vector<std::string>& sockets) {
  const std::string files = process + "/fd/";
  return std::ranges::any_of(names_in_folder(files), [&](const std::string& file) {
    return std::ranges::find(sockets, read_link(files + file)) != sockets.end();
  });
}

std::string command_of(const std::string& process) {
  std::string text = read_file_if_any(process + "/cmdline");
  std::ranges::replace(text, '\0', ' ');
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text.substr(0, 120);
}

}  // namespace

const ProcessIdentity& this_process() {
  static const ProcessIdentity self = find_out();
  return self;
}

LaunchedCopies launched_copies(
    const std::function<std::optional<std::string>(const char* name)>& find) {
  constexpr struct {
    const char* size;
    const char* rank;  // set in each process that the launcher starts
    const char* launcher;
  } kRows[] = {
      {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "mpirun"},
      {"PMI_SIZE", "PMI_RANK", "mpiexec"},
      {"WORLD_SIZE", "RANK", "torchrun"},
      {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "srun"},
      {"SLURM_NTASKS", "SLURM_JOB_ID", "Slurm"},
  };
  for (const auto& row : kRows) {
    const std::optional<std::string> text = find(row.size);
    if (!text || !find(row.rank)) continue;
    const int count = std::atoi(text->c_str());
    if (count > 1) return {count, concat(row.size, "=", count, " (", row.launcher, ")")};
  }
  return {};
}

std::string warning_of_copies(const LaunchedCopies& copies, std::string_view remedy) {
  if (copies.count < 2) return "";
  return concat("this process trains alone, though ", copies.sign, " names ", copies.count,
                " processes: ", copies.count, " copies train and write the same files; use ",
                remedy, "; logged once");
}

ProcessState inspect_process(std::int64_t pid, std::uint64_t start_time) {
  using Kind = ProcessState::Kind;
  const auto stat = read_stat(concat("/proc/", pid, "/stat"));
  if (!stat) return {::access("/proc/self/stat", R_OK) == 0 ? Kind::kIsGone : Kind::kUnknown, '?'};
  if (stat->start_time != start_time) return {Kind::kIsGone, '?'};
  switch (stat->letter) {
    case 'T':
    case 't':
      return {Kind::kIsStopped, stat->letter};
    case 'Z':
    case 'X':
    case 'x':
      return {Kind::kIsGone, stat->letter};
    default:
      return {Kind::kRuns, busiest_letter(pid, stat->letter)};
  }
}

std::string process_text(std::int64_t pid) {
  return concat("pid ", pid, " (", command_of(concat("/proc/", pid)), ")");
}

std::string owner_of_port(int port) {
  const std::vector<std::string> sockets = listening_sockets(port);
  if (sockets.empty()) return "";
  for (const std::string& name : names_in_folder("/proc")) {
    if (name.find_first_not_of("0123456789") != name.npos) continue;
    if (has_one_of("/proc/" + name, sockets)) return process_text(std::stoll(name));
  }
  return "";
}

}  // namespace tutti::internal

namespace tutti {

// Stack traces: a signal makes each thread record its own frames; names are looked up outside the
// handler.

namespace {

constexpr int kMostFrames = 64;

/// Result of the signal handler. The handler fills it in only if `asked_thread` is still its own
/// thread's id, so that a late result cannot overwrite the next thread's result.
struct Answer {
  std::atomic<int> asked_thread{0};
  std::array<void*, kMostFrames> frames;
  int num_frames = 0;
  std::atomic<int> answered_thread{0};
};
Answer answer;

void record_frames(int) {
  const int saved_errno = errno;
  int self = static_cast<int>(syscall(SYS_gettid));
  const int wanted = self;
  // Does nothing if the request for this thread has expired.
  if (answer.asked_thread.compare_exchange_strong(self, 0)) {
    answer.num_frames = backtrace(answer.frames.data(), kMostFrames);
    answer.answered_thread.store(wanted, std::memory_order_release);
  }
  errno = saved_errno;
}

int stack_signal() { return SIGRTMIN + 3; }

void install_handler() {
  // The first backtrace() loads a library, which a signal handler must not do.
  void* frame[1];
  backtrace(frame, 1);
  struct sigaction action = {};
  action.sa_handler = record_frames;
  action.sa_flags = SA_RESTART;
  sigaction(stack_signal(), &action, nullptr);
}

std::string frames_as_text() {
  const std::unique_ptr<char*, void (*)(void*)> lines(
      backtrace_symbols(answer.frames.data(), answer.num_frames), std::free);
  std::string text;
  for (int i = 0; lines != nullptr && i < answer.num_frames; ++i) {
    text += concat("    ", lines.get()[i], "\n");
  }
  return text;
}

std::string stack_of(int thread) {
  const std::string name = read_file_if_any(concat("/proc/self/task/", thread, "/comm"));
  if (name.empty()) return "";  // the thread has ended in the meantime
  std::string text = concat("  thread ", thread, " ", name);
  answer.answered_thread.store(0);
  answer.asked_thread.store(thread);
  if (syscall(SYS_tgkill, getpid(), thread, stack_signal()) != 0) return text;
  Clock& clock = Clock::system();
  const TimePoint deadline = deadline_after(clock.now(), std::chrono::seconds(1));
  while (answer.answered_thread.load(std::memory_order_acquire) != thread) {
    int still_asked = thread;
    if (clock.now() > deadline && answer.asked_thread.compare_exchange_strong(still_asked, 0)) {
      return text + "    (did not answer)\n";
    }
    clock.sleep_for(std::chrono::milliseconds(1));
  }
  return text + frames_as_text();
}

/// Returns the threads of this process. The system's list is incomplete if a thread ends during the
/// read, so the list is read again until no new thread appears.
std::set<int> threads_of_process() {
  std::set<int> threads;
  std::size_t last = 0;
  do {
    last = threads.size();
    for (const std::string& task : names_in_folder("/proc/self/task")) {
      threads.insert(std::stoi(task));
    }
  } while (threads.size() != last);
  return threads;
}

}  // namespace

std::string stacks_of_all_threads() {
  static Mutex turns;
  MutexLock lock(turns);
  install_handler();
  std::string text;
  for (const int thread : threads_of_process()) text += stack_of(thread);
  return text;
}

}  // namespace tutti
