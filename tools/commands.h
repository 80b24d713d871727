// Sub-commands of the program `tutti`, and a description of this machine.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "tutti/core/flags.h"
#include "tutti/core/json.h"

namespace tutti::tools {

enum class OutputFormat { kText, kJson };

/// Prints a report as indented JSON.
inline void print(const Json& report) { std::printf("%s\n", report.dump(2).c_str()); }

/// Lists the devices on this machine that this build can use. `virtual_gpus`: a value in the format
/// of TUTTI_VIRTUAL_GPUS, or empty.
int devices_command(OutputFormat format, const std::string& virtual_gpus);

/// Reports the capabilities of this build and this machine, with a verdict. Returns 1 if a
/// requirement is missing. Searches for Fashion-MNIST in `data_dir` or, if `data_dir` is empty, in
/// the default folders.
int doctor_command(OutputFormat format, const std::string& data_dir);

/// Shows the cluster that `resolver` reads from the environment. Returns 2 if the cluster cannot be
/// read or is not valid, or if there is no such resolver.
int cluster_command(OutputFormat format, const std::string& resolver);

/// Arguments of `tutti conform`.
struct ConformOptions {
  std::string name;    // registered name; may be empty if `plugin` is given
  std::string plugin;  // shared library with the operation; empty: none
  std::string plugin_options;
  std::string shape = "all";
  std::string case_id;  // runs only this case
  std::string devices;  // "gpu:0-1"; empty: CPUs
  std::int64_t seed = 1;
  std::int64_t sample = 0;  // approximate number of cases; 0: all
  double budget = 0;        // seconds; 0: no limit
  std::int64_t limit = 60;  // time limit per case in seconds; 0: none
  OutputFormat format = OutputFormat::kText;
};

/// Runs the conformance kit on an operation. Returns 1 if a case failed (or none could run), and 2
/// for an invalid operation, plugin or case.
int conform_command(const ConformOptions& options);

/// Arguments of `tutti run`, as typed.
struct RunFlags {
  std::int64_t processes = -1;  // -1: not given
  std::int64_t workers = -1;
  std::int64_t ps = 0;
  bool chief = false;
  std::string log_dir = "";
  std::int64_t max_restarts = 0;
  double grace = 30;
  double timeout = 0;
  std::vector<std::string> environment;
  bool bind_cores = false;
  std::string control = "grpc";
  bool dry_run = false;
  bool verbose = false;
  std::string hosts = "";
  std::int64_t port = 20'000;
  std::vector<std::string> program;  // the program, followed by its arguments

  void declare(Flags& flags);
  /// If the command is `tutti run`, moves the program and its arguments to `program`. The
  /// program begins after "--", or at the first word that is neither a flag nor a flag's value. If
  /// there is no program, prints a message and returns 2; otherwise returns 0.
  int take_program(int& argc, char** argv);
};

/// Runs a program in several processes on this machine. Returns the job's exit code
/// (docs/launching.md), or 2 for invalid flags.
int run_command(const RunFlags& flags);

/// Arguments of `tutti ckpt`.
struct CkptOptions {
  std::string path;        // folder of a run, a version in it, or a safetensors file
  std::int64_t step = -1;  // for `show`; -1: the newest
  OutputFormat format = OutputFormat::kText;
};

/// Lists the checkpoint versions; checks only their indexes and sizes. Returns 1 if a version is
/// damaged.
int checkpoint_list_command(const CkptOptions& options);
/// Same as checkpoint_list_command(), but reads every byte.
int checkpoint_verify_command(const CkptOptions& options);
/// Shows the contents of a checkpoint version. Throws kNotFound if there is no such version.
int checkpoint_show_command(const CkptOptions& options);

struct Machine {
  std::string cpu_model;
  int num_cores = 1;  // cores available to this process
  std::int64_t memory_bytes = 0;
  std::int64_t available_memory_bytes = 0;
  std::string best_isa;                // widest vector instructions: "AVX-512", "AVX2", ...
  std::vector<std::string> isa_flags;  // flags that affect speed, as named by the kernel
};

/// Reads /proc. Values that cannot be read keep their defaults.
Machine inspect_machine();

}  // namespace tutti::tools
