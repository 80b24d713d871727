// What `tutti run` is asked for.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/launch/job_plan.h"
#include "tools/launch/run_reporter.h"
#include "tools/launch/supervisor.h"
#include "tutti/core/flags.h"

namespace tutti::tools {

/// As typed.
struct RunFlags {
  std::int64_t processes = -1;  // -1: not given
  std::int64_t workers = -1;
  std::int64_t ps = 0;
  bool chief = false;
  std::string log_dir = "";
  std::int64_t max_restarts = 0;
  std::int64_t max_job_restarts = -1;
  double grace = 30;
  double timeout = 0;
  std::vector<std::string> environment;
  bool bind_cores = false;
  std::string control = "tcp";
  bool dry_run = false;
  std::string hosts = "";
  std::int64_t port = 20'000;
  std::vector<std::string> program;  // what stands behind "--"

  void declare(Flags& flags);
  /// When the line is one of `tutti run`: cuts the program (what stands behind "--") off, for the
  /// flags of the program are not ours. Returns 2 after a message when there is none, else 0.
  int take_program(int& argc, char** argv);
};

struct RunOptions {
  launch::JobRequest job;
  launch::SupervisorOptions supervisor;
  launch::ReporterOptions reporter;
  std::string control;  // "tcp", "grpc", or "none"
  bool dry_run = false;
};

/// Checks. Throws kInvalidArgument naming the flag, or kNotFound naming the program.
RunOptions parse_run_options(const RunFlags& flags);

}  // namespace tutti::tools
