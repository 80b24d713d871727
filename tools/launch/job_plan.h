// What `tutti run` is about to start: each process with its environment and its cores.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/launch/child_process.h"

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

/// What a job is made of, as asked for.
struct JobRequest {
  std::vector<std::string> arguments = {};  // the program first
  TaskCounts counts = {};
  Variables environment = {};           // of all processes; wins over what the launcher sets
  std::vector<std::string> hosts = {};  // empty: this machine
  int first_port = 20'000;              // on each of `hosts`
  std::vector<int> cores = {};          // those of this machine; processes get equal parts
  bool bind_cores = false;              // each process on its part, or anywhere
};

/// One process; its place in JobPlan::processes is its rank.
struct ProcessPlan {
  Task task;
  std::string host;  // empty: this machine
  Variables environment;
  std::vector<int> cores;  // empty: any
};

struct JobPlan {
  std::string job_id;
  std::vector<std::string> arguments;
  std::vector<ProcessPlan> processes;

  /// Adds a variable to all processes, unless the user has set it.
  void add_variable(const std::string& name, const std::string& value);
  /// The value of a variable that is the same in all processes; nullptr when it is not set.
  const std::string* variable(const std::string& name) const;
};

/// `count` different TCP ports that are free on 127.0.0.1 now. They lie below those that the kernel
/// hands to outgoing connections, so that no connection takes one before the program binds it; they
/// are chosen at random and reserved until this process ends, so that two jobs do not meet. Throws
/// kResourceExhausted when there are not so many.
std::vector<int> free_ports(int count);

/// Unique text: time and chance, such as "20260131-142501-5f3a9c".
std::string make_job_id();

/// Cores of `rank` when `num_processes` share `cores`: equal parts; several on one core when there
/// are more processes than cores.
std::vector<int> cores_of_rank(const std::vector<int>& cores, int rank, int num_processes);

/// Cores that this process may use.
std::vector<int> allowed_cores();

/// Chooses addresses (free ports of this machine, or `first_port` and on of each host) and sets
/// TF_CONFIG, TUTTI_JOB_ID, TUTTI_RESTART and OMP_NUM_THREADS (unless it is set).
JobPlan make_plan(const JobRequest& request);

/// `text` as one word of a POSIX shell.
std::string shell_quote(const std::string& text);

/// Lines for shells: the secret, then each process with its whole environment.
std::string dry_run_text(const JobPlan& plan);

/// Makes a folder (mode 0700) with a file (mode 0600) of 32 random bytes in hexadecimal, below
/// XDG_RUNTIME_DIR, TMPDIR or /tmp. The destructor removes both. Throws kUnavailable naming the
/// folder.
class SecretFolder {
 public:
  SecretFolder();
  ~SecretFolder();
  SecretFolder& operator=(SecretFolder&&) = delete;

  const std::string& folder() const { return folder_; }
  std::string file() const { return folder_ + "/secret"; }

 private:
  std::string folder_;
};

}  // namespace tutti::launch
