// The kernel's counters of processes killed for memory.
// SPDX-License-Identifier: Apache-2.0
#include "tools/launch/oom_counter.h"

#include <cstdlib>
#include <sstream>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/core/file.h"

namespace tutti::launch {
namespace {

std::optional<long> counter_in(const std::string& file) {
  std::string text;
  try {
    text = read_file(file);
  } catch (const Error&) {
    return std::nullopt;  // not every machine has every file
  }
  std::istringstream lines(text);
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
  std::istringstream lines(read_file("/proc/self/cgroup"));
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

OomCounter::OomCounter() {
  try {
    for (const std::string& file : files_of_cgroups()) {
      if (!counter_in(file)) continue;
      file_ = file;
      of_cgroup_ = true;
      break;
    }
  } catch (const Error&) {
    // No control groups.
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
