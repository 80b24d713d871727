// Helpers for checkpoint tests: folders, crashes, and a series of saves whose values identify the
// save.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/file_faults.h"
#include "tests/support/test_folder.h"
#include "tests/support/thrown.h"
#include "tutti/checkpoint/checkpoint_manager.h"
#include "tutti/tensor/tensor.h"

namespace tutti::testing {

/// Returns the path of a folder that does not exist yet. The path is in /dev/shm if possible,
/// because thousands of saves would be slow on a disk.
inline std::string fast_folder(const std::string& name) {
  const bool has_memory = ::access("/dev/shm", W_OK) == 0;
  const std::string path = (has_memory ? std::string("/dev/shm") : TempDir()) + "/tutti_" + name +
                           "_" + std::to_string(::getpid());
  std::filesystem::remove_all(path);
  return path;
}

/// Variables and a counter whose values all equal the number of the last save.
class Series {
 public:
  Series() {
    checkpoint_.add_state("number", {[this] { return Json(number_); },
                                     [this](const Json& json) { number_ = json.as_int(); }});
  }

  const Checkpoint& checkpoint() const { return checkpoint_; }
  void set(std::int64_t number) {
    number_ = number;
    weights_.assign(static_cast<double>(number));
    counts_.assign(static_cast<double>(number));
  }
  /// Returns the number of the save if all values agree, or -1 if they belong to different saves.
  std::int64_t number() const {
    for (const Variable& variable : checkpoint_.variables()) {
      for (const double value : variable.value().to_doubles()) {
        if (value != static_cast<double>(number_)) return -1;
      }
    }
    return number_;
  }

  void save(CheckpointManager& manager, std::int64_t number, std::int64_t step) {
    set(number);
    manager.save(step);
  }

 private:
  std::int64_t number_ = 0;
  Variable weights_{Tensor::zeros({700}), VariableOptions{.name = "weights"}};
  Variable counts_{Tensor::zeros({3}, DType::kInt64), VariableOptions{.name = "counts"}};
  Checkpoint checkpoint_{{weights_, counts_}};
};

/// Returns the number that a new manager restores, or nullopt if there is no version.
inline std::optional<std::int64_t> restored_number(const std::string& folder) {
  Series series;
  CheckpointManager manager(series.checkpoint(), folder);
  if (!manager.restore_latest()) return std::nullopt;
  return series.number();
}

struct Crash {
  bool finished = false;  // true if `save_all` returned; false if the fault ended the process
  int num_saved = 0;      // number of saves that returned
};

/// Runs `save_all` in a child process in which fault `action` occurs at the file system call with
/// number `call`. `save_all` must write a byte to `done` after each save.
inline Crash crash_at(int call, file_faults::Action action, const std::string& folder,
                      const std::function<void(int done)>& save_all) {
  int done[2];
  if (::pipe(done) != 0) std::abort();
  const pid_t child = ::fork();
  if (child == 0) {
    file_faults::arm(folder, action, call);
    save_all(done[1]);
    ::_exit(0);
  }
  ::close(done[1]);
  Crash crash;
  for (char byte; ::read(done[0], &byte, 1) == 1;) ++crash.num_saved;
  ::close(done[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  crash.finished = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  EXPECT_TRUE(crash.finished || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
  return crash;
}

}  // namespace tutti::testing
