// Reading /proc.
// SPDX-License-Identifier: Apache-2.0
#include "core/process_probe.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

#include "tutti/core/random.h"
#include "tutti/core/text.h"

namespace tutti::internal {
namespace {

namespace fs = std::filesystem;

struct StatLine {
  char letter = '?';
  std::uint64_t start_time = 0;
};

/// "812 (name) S 1 ...": the name may hold anything, so the fields count from its last bracket.
std::optional<StatLine> read_stat(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
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

/// Returns the letter of a thread that runs (R), waits for a processor (R), or waits in the system
/// (D), and that of the process where all threads sleep.
char busiest_letter(std::int64_t pid, char of_process) {
  const auto is_busy = [](char letter) { return letter == 'R' || letter == 'D'; };
  if (is_busy(of_process)) return of_process;
  std::error_code error;
  for (fs::directory_iterator thread(concat("/proc/", pid, "/task"), error), end;
       !error && thread != end; thread.increment(error)) {
    const auto stat = read_stat(thread->path() / "stat");
    if (stat && is_busy(stat->letter)) return stat->letter;
  }
  return of_process;
}

std::string read_word(const char* path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
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
  self.boot_id = read_word("/proc/sys/kernel/random/boot_id");
  // Containers of one machine have process numbers of their own.
  self.machine = concat(self.boot_id, " ", read_link("/proc/self/ns/pid"));
  self.unique = new_unique_name();
  return self;
}

/// The sockets that listen at `port`, as /proc/<pid>/fd shows them: "socket:[4711]".
std::vector<std::string> listening_sockets(int port) {
  std::vector<std::string> found;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
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

bool has_one_of(const fs::path& process, const std::vector<std::string>& sockets) {
  std::error_code error;
  for (fs::directory_iterator file(process / "fd", error), end; !error && file != end;
       file.increment(error)) {
    if (std::ranges::find(sockets, read_link(file->path())) != sockets.end()) return true;
  }
  return false;
}

std::string command_of(const fs::path& process) {
  std::ifstream file(process / "cmdline");
  std::string text{std::istreambuf_iterator<char>(file), {}};
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
                " processes: ", copies.count, " copies train and write the same files; try ",
                remedy, "; logged once");
}

ProcessState look_at_process(std::int64_t pid, std::uint64_t start_time) {
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
  std::error_code error;
  for (fs::directory_iterator entry("/proc", error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (name.find_first_not_of("0123456789") != name.npos) continue;
    if (!has_one_of(entry->path(), sockets)) continue;
    return process_text(std::stoll(name));
  }
  return "";
}

}  // namespace tutti::internal
