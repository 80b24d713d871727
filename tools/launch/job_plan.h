// Plan of a job for `tutti run`: its processes with their environments and cores.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/launch/child_process.h"

namespace tutti::launch {

/// A task of a job, named as in TensorFlow.
struct Task {
  std::string type = "worker";  // "chief", "worker" or "ps"
  int index = 0;                // index among the tasks of this type
  std::string address;          // "127.0.0.1:4711"

  /// Returns "worker-0".
  std::string name() const;
};

/// Number of tasks of each type.
struct TaskCounts {
  int chiefs = 0;  // 0 or 1
  int workers = 1;
  int ps = 0;

  int total() const { return chiefs + workers + ps; }
};

/// Returns the tasks: chief, workers and parameter servers; `addresses` are in this order.
std::vector<Task> make_tasks(const TaskCounts& counts, const std::vector<std::string>& addresses);

/// Returns the value of TF_CONFIG for `self`, on one line.
std::string tf_config(const std::vector<Task>& tasks, const Task& self);

/// The user's request for a job.
struct JobRequest {
  std::vector<std::string> arguments = {};  // the program, then its arguments
  TaskCounts counts = {};
  Variables environment = {};           // for all processes; overrides the launcher's environment
  std::vector<std::string> hosts = {};  // empty: this machine
  int first_port = 20'000;              // first port on each of `hosts`
  std::vector<int> cores = {};          // cores to divide equally among the processes
  bool bind_cores = false;              // if true, binds each process to its share of the cores
};

/// One process; its index in JobPlan::processes is its rank.
struct ProcessPlan {
  Task task;
  std::string host;  // empty: this machine
  Variables environment;
  std::vector<int> cores;  // empty: any cores
};

struct JobPlan {
  std::string job_id;
  std::vector<std::string> arguments;
  std::vector<ProcessPlan> processes;

  /// Adds a variable to all processes whose environment in the plan does not contain it.
  void add_variable(const std::string& name, const std::string& value);
  /// Returns the value of an environment variable, which must be the same for all processes;
  /// nullptr if it is not set.
  const std::string* variable(const std::string& name) const;
};

/// Returns `count` different TCP ports that are free on 127.0.0.1. They are below the kernel's
/// range for outgoing connections, so that no connection takes a port before the program binds it.
/// The ports are random, and reserved until this process ends, so that two jobs do not collide.
/// Throws kResourceExhausted if too few ports are free.
std::vector<int> free_ports(int count);

/// Returns a unique id made up of the time and random digits, such as "20260131-142501-5f3a9c".
std::string make_job_id();

/// Returns the cores of `rank` if `num_processes` processes divide `cores` equally. If there are
/// too few cores, several processes share one core.
std::vector<int> cores_of_rank(const std::vector<int>& cores, int rank, int num_processes);

/// Returns the cores that this process may use.
std::vector<int> allowed_cores();

/// Chooses addresses (free ports on this machine, or ports from `first_port` on each host) and sets
/// TF_CONFIG, TUTTI_JOB_ID and TUTTI_RESTART. Sets OMP_NUM_THREADS if the processes run on this
/// machine and the launcher's environment lacks it. `request.environment` overrides these
/// variables.
JobPlan make_plan(const JobRequest& request);

/// Quotes `text` as one word of a POSIX shell.
std::string shell_quote(const std::string& text);

/// Returns shell commands: the first one creates the secret, and each later command starts a
/// process with its environment.
std::string dry_run_text(const JobPlan& plan);

/// Folder (mode 0700) in XDG_RUNTIME_DIR, TMPDIR or /tmp, with a file (mode 0600) of 32 random
/// bytes in hexadecimal. The destructor removes both. The constructor throws kUnavailable if it
/// cannot create them.
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
