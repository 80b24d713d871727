// The sub-commands of the program `tutti`, and what they need to know of this machine.
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

/// The devices on which this build can compute on this machine. `virtual_gpus`: empty, or as
/// TUTTI_VIRTUAL_GPUS.
int devices_command(OutputFormat format, const std::string& virtual_gpus);

/// What this build and this machine can do, with a verdict. 1 when something needed is missing.
/// Fashion-MNIST is looked for in `data_dir`, or in the usual places when it is empty.
int doctor_command(OutputFormat format, const std::string& data_dir);

/// The cluster that this process's environment describes, as the resolver of that name reads it. 2
/// when it cannot be read, is not valid, or there is no such resolver.
int cluster_command(OutputFormat format, const std::string& resolver);

/// What `tutti conform` is asked for.
struct ConformOptions {
  std::string name;    // of the registry; may be empty when `plugin` is given
  std::string plugin;  // a shared library to load first
  std::string plugin_options;
  std::string shape = "all";
  std::string case_id;  // this case alone
  std::string devices;  // "gpu:0-1"; empty: CPUs
  std::int64_t seed = 1;
  std::int64_t sample = 0;  // 0: every case
  double budget = 0;        // seconds; 0: no limit
  std::int64_t limit = 60;  // seconds of one case; 0: none
  OutputFormat format = OutputFormat::kText;
};

/// Runs the conformance kit against an operation. 1 when a case failed (or none could run), 2 for
/// what is no operation, plugin or case.
int conform_command(const ConformOptions& options);

/// What `tutti run` is asked for, as typed.
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
  std::string hosts = "";
  std::int64_t port = 20'000;
  std::vector<std::string> program;  // with its arguments

  void declare(Flags& flags);
  /// When the line is one of `tutti run`: cuts the program off, for its flags are not ours. It
  /// begins behind "--", or at the first word that is neither a flag nor a flag's value. Returns 2
  /// after a message when there is none, else 0.
  int take_program(int& argc, char** argv);
};

/// Runs a program in several processes of this machine. The exit code is that of the job
/// (docs/launching.md), 2 for flags that make no sense.
int run_command(const RunFlags& flags);

/// What `tutti ckpt` is asked for.
struct CkptOptions {
  std::string path;        // the folder of a run, a version in it, or a safetensors file
  std::int64_t step = -1;  // of `show`; -1: the newest
  OutputFormat format = OutputFormat::kText;
};

/// Which versions there are, by their indexes and sizes. 1 when one is damaged.
int checkpoint_list_command(const CkptOptions& options);
/// The same after reading every byte.
int checkpoint_verify_command(const CkptOptions& options);
/// What is in a version.
int checkpoint_show_command(const CkptOptions& options);

struct Machine {
  std::string cpu_model;
  int num_cores = 1;  // that this process may use
  std::int64_t memory_bytes = 0;
  std::int64_t available_memory_bytes = 0;
  std::string best_isa;                // the widest vector instructions: "AVX-512", "AVX2", ...
  std::vector<std::string> isa_flags;  // those that matter for speed, as the kernel calls them
};

/// Reads /proc. What cannot be read stays at its default.
Machine inspect_machine();

}  // namespace tutti::tools
