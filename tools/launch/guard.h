// Cleans up behind a launcher that was killed without a chance to do so itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>

namespace tutti::launch {

/// A small process beside this one, waiting for its end. When this process ends without destroying
/// the object (kill -9), the guard kills every watched process group, then whatever else was
/// started with the job's mark in its environment (processes of the job that left their group), and
/// removes the file and its folder. Make it before any thread is started.
class Guard {
 public:
  /// `secret_folder` holds one file, `secret_file`. `mark`: "NAME=value", of this job alone.
  Guard(const std::string& secret_folder, const std::string& secret_file, const std::string& mark);
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  pid_t pid() const { return pid_; }
  void watch(pid_t group);
  void forget(pid_t group);

 private:
  void tell(pid_t number);

  pid_t pid_ = -1;
  int pipe_ = -1;
};

}  // namespace tutti::launch
