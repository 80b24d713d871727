// The tasks of a job, in the order of their ranks, and the TF_CONFIG that tells a process its own.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace tutti::launch {

/// One process of a job, as TensorFlow names it.
struct Task {
  std::string type = "worker";  // "chief", "worker" or "ps"
  int index = 0;                // within its type
  std::string address;          // "127.0.0.1:4711"

  /// "worker-0".
  std::string name() const;
};

/// How many tasks of each type.
struct TaskCounts {
  int chiefs = 0;  // 0 or 1
  int workers = 1;
  int ps = 0;

  int total() const { return chiefs + workers + ps; }
};

/// Chief, workers, parameter servers; `addresses` in the same order.
std::vector<Task> make_tasks(const TaskCounts& counts, const std::vector<std::string>& addresses);

/// The text of TF_CONFIG for `self`, on one line.
std::string tf_config(const std::vector<Task>& tasks, const Task& self);

}  // namespace tutti::launch
