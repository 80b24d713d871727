// `tutti run`: parses and checks flags, and runs a program in several processes on this machine.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "cluster/control/control_server.h"
#include "cluster/net/socket.h"
#include "core/names.h"
#include "core/network_address.h"
#include "tools/commands.h"
#include "tools/launch/child_process.h"
#include "tools/launch/job_plan.h"
#include "tools/launch/supervisor.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/error.h"

namespace tutti::tools {
namespace {

constexpr std::int64_t kMaxProcesses = 1024;

constexpr const char* kFooter = R"(Examples:
  tutti run -n 4 ./train --epochs 3             four workers, each with its own TF_CONFIG
  tutti run --workers 2 --ps 1 --chief ./train
  tutti run -n 4 --max-restarts 3 -- ./train    restart failed processes, up to 3 times each
  tutti run -n 4 --hosts a,b --dry-run ./train  commands to paste on machines a and b

Exit code: 0 if all processes succeeded; the exit code of the process that failed first (128 +
signal if a signal killed it); 75 if the job stopped on request; 124 after --timeout; 2 for wrong
usage. See docs/launching.md.)";

/// Parsed and checked flags.
struct RunOptions {
  launch::JobRequest job;
  launch::SupervisorOptions supervisor;
  bool has_control = true;
  bool dry_run = false;
};

Duration seconds(double number) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(number));
}

template <class Number>
void check_range(const char* flag, Number value, Number min, Number max) {
  if (value >= min && value <= max) return;
  fail(ErrorCode::kInvalidArgument, "run: ", flag, ": expected a number from ", min, " to ", max,
       ", got ", value);
}

/// Returns the number of tasks of each type. -n is the total number of tasks, and --workers the
/// number of workers. Each determines the other; if both are given, they must agree.
launch::TaskCounts counts_of(const RunFlags& flags) {
  const std::int64_t chiefs = flags.chief ? 1 : 0;
  if (flags.processes < 0 && flags.workers < 0) {
    fail(ErrorCode::kInvalidArgument,
         "run: expected -n N or --workers W, got neither; for example, use -n 2");
  }
  if (flags.processes >= 0) check_range<std::int64_t>("-n", flags.processes, 1, kMaxProcesses);
  if (flags.workers >= 0) check_range<std::int64_t>("--workers", flags.workers, 0, kMaxProcesses);
  check_range<std::int64_t>("--ps", flags.ps, 0, kMaxProcesses);
  const std::int64_t workers =
      flags.workers >= 0 ? flags.workers : flags.processes - flags.ps - chiefs;
  const std::int64_t total = workers + flags.ps + chiefs;
  if (workers < 0 || workers + chiefs == 0 || (flags.processes >= 0 && total != flags.processes)) {
    fail(ErrorCode::kInvalidArgument, "run: expected ",
         flags.processes >= 0
             ? concat("-n ", flags.processes, " to equal the total number of tasks")
             : "at least one worker or chief",
         ", got workers: ", std::max<std::int64_t>(0, workers), ", parameter servers: ", flags.ps,
         ", chiefs: ", chiefs);
  }
  check_range<std::int64_t>("-n", total, 1, kMaxProcesses);
  return {static_cast<int>(chiefs), static_cast<int>(workers), static_cast<int>(flags.ps)};
}

launch::Variables variables_of(const std::vector<std::string>& texts) {
  launch::Variables variables;
  for (const std::string& text : texts) {
    const std::size_t equals = text.find('=');
    internal::require(equals != std::string::npos && equals != 0,
                      "run: --env: expected NAME=VALUE, got '", text, "'");
    variables.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

std::vector<std::string> hosts_of(const RunFlags& flags) {
  std::vector<std::string> hosts = split_text(flags.hosts);
  for (const std::string& host : hosts) {
    if (host.find_first_of(" /'\"") != std::string::npos ||
        !internal::parse_endpoint(internal::join_address(host, 1))) {
      fail(ErrorCode::kInvalidArgument,
           "run: --hosts: expected names or IP addresses separated by ',', got '", flags.hosts,
           "'; use --port for the ports");
    }
  }
  if (!hosts.empty() && !flags.dry_run) {
    fail(ErrorCode::kInvalidArgument,
         "run: --hosts: tutti starts processes only on this machine; add --dry-run, and run the "
         "printed commands on the hosts");
  }
  if (!hosts.empty() && flags.bind_cores) {
    fail(ErrorCode::kInvalidArgument,
         "run: --bind-cores: expected no --hosts, because the cores of other machines are unknown");
  }
  return hosts;
}

/// Returns the checked flags. Throws kInvalidArgument with the flag's name, or kNotFound with the
/// program's name.
RunOptions parse_run_options(const RunFlags& flags) {
  check_range<std::int64_t>("--max-restarts", flags.max_restarts, 0, 1'000'000);
  check_range("--grace", flags.grace, 0.0, 1e6);
  check_range("--timeout", flags.timeout, 0.0, 1e9);
  check_range<std::int64_t>("--port", flags.port, 1, 65'535 - kMaxProcesses);
  RunOptions options;
  options.job.arguments = flags.program;
  options.job.counts = counts_of(flags);
  if (flags.verbose) options.job.environment.emplace_back("TUTTI_LOG_LEVEL", "info");
  for (auto& variable : variables_of(flags.environment))
    options.job.environment.push_back(std::move(variable));
  options.job.hosts = hosts_of(flags);
  options.job.first_port = static_cast<int>(flags.port);
  options.job.cores = launch::allowed_cores();
  options.job.bind_cores = flags.bind_cores;
  options.has_control = flags.control != "none";
  if (options.has_control && !control_has_grpc()) {
    fail(ErrorCode::kUnimplemented,
         "run: --control grpc: this build has no gRPC; start the program with mpirun instead");
  }
  options.dry_run = flags.dry_run;
  options.supervisor.grace = seconds(flags.grace);
  if (flags.timeout > 0) options.supervisor.timeout = seconds(flags.timeout);
  options.supervisor.max_restarts = static_cast<int>(flags.max_restarts);
  options.supervisor.log_dir = flags.log_dir;
  // A dry run may print commands for other machines, so the program need not exist on this one.
  if (!flags.dry_run) launch::find_program(flags.program.front());
  return options;
}

/// Starts the job's control server in this process, which outlives the members, so that a restarted
/// member finds its state. Returns nullptr if TUTTI_CONTROL is set or the job has only one process.
std::unique_ptr<ControlServer> host_control(const launch::JobPlan& plan) {
  if (plan.variable("TUTTI_CONTROL") || std::getenv("TUTTI_CONTROL")) return {};
  ControlServerOptions options;
  options.job_id = *plan.variable("TUTTI_JOB_ID");
  options.secret = JobSecret::from_file(*plan.variable("TUTTI_JOB_SECRET_FILE"));
  // A step may take a long time; collectives have their own deadlines.
  options.health.abort_stuck_after = durations::kLongestStep;
  for (const launch::ProcessPlan& process : plan.processes) {
    const launch::Task& task = process.task;
    // Parameter servers join the job only under strategies that use them.
    auto& members = task.type == "ps" ? options.welcome : options.expected;
    members.push_back({task.type, task.index, task.address});
  }
  options.linger = Duration::zero();  // no linger needed: the server outlives all processes
  return plan.processes.size() > 1 ? ControlServer::start(options) : nullptr;
}

/// Returns a function that finds members on which the job has given up. A stopped process does not
/// exit and keeps its task, so the process must be killed before a replacement can start or the job
/// can end.
std::function<std::vector<launch::AbandonedProcess>()> find_given_up(const ControlServer& control) {
  return [&control, seen = std::uint64_t{0}]() mutable {
    std::vector<launch::AbandonedProcess> found;
    for (const Verdict& verdict : control.verdicts_after(seen)) {
      seen = verdict.number;
      const bool has_died = verdict.kind == VerdictKind::kDead;
      if (!has_died && verdict.kind != VerdictKind::kStopped) continue;
      const launch::Task task{verdict.who.task.job, verdict.who.task.index, ""};
      const int restarts = static_cast<int>(verdict.who.incarnation);
      found.push_back({task.name(), restarts, has_died, verdict.message});
    }
    return found;
  };
}

std::function<std::vector<launch::TaskProcess>()> find_failed(const ControlServer& control) {
  return [&control] {
    std::vector<launch::TaskProcess> failed;
    for (const Verdict& verdict : control.verdicts()) {
      const bool is_end = verdict.kind == VerdictKind::kDead ||
                          verdict.kind == VerdictKind::kStopped ||
                          verdict.kind == VerdictKind::kFailed ||
                          (verdict.kind == VerdictKind::kLeft && verdict.is_fatal);
      if (!is_end) continue;
      const launch::Task task{verdict.who.task.job, verdict.who.task.index, ""};
      failed.push_back({task.name(), static_cast<int>(verdict.who.incarnation)});
    }
    return failed;
  };
}

std::string name_of(const Member& member) {
  return launch::Task{member.task.job, member.task.index, ""}.name();
}

/// Returns the tasks that a restarted chief needs again. Only a coordinating chief leaves the job
/// before the other tasks. A chief that dies after leaving and is restarted can continue from its
/// checkpoint only if the tasks that left after the chief are restarted, too.
std::vector<launch::AwaitedTask> needed_by_chief(const std::vector<Verdict>& verdicts) {
  const auto first = std::ranges::find(verdicts, VerdictKind::kLeft, &Verdict::kind);
  if (first == verdicts.end() || first->who.task.job != "chief") return {};
  std::map<std::string, const Verdict*> last;
  for (const Verdict& verdict : verdicts) last[name_of(verdict.who)] = &verdict;
  const Verdict& chief = *last[name_of(first->who)];
  if (chief.kind != VerdictKind::kJoined || chief.number < first->number) return {};
  std::vector<launch::AwaitedTask> tasks;
  for (const auto& [name, verdict] : last) {
    if (verdict->kind != VerdictKind::kLeft) continue;
    tasks.push_back({name, static_cast<int>(verdict->who.incarnation), /*may_repeat=*/true});
  }
  return tasks;
}

std::function<std::vector<launch::AwaitedTask>()> find_waited_for(const ControlServer& control) {
  return [&control] {
    std::vector<launch::AwaitedTask> tasks = needed_by_chief(control.verdicts());
    for (const Member& member : control.missing()) {
      launch::AwaitedTask& one = tasks.emplace_back();
      one.task = name_of(member);
      if (member.pid != 0) one.joined = static_cast<int>(member.incarnation);
    }
    return tasks;
  };
}

/// Returns true for flags of `tutti run` that take no value.
bool is_switch(std::string_view flag) {
  constexpr std::array<std::string_view, 6> kSwitches = {"--chief", "--bind-cores", "--dry-run",
                                                         "-v",      "--help",       "-h"};
  return std::ranges::find(kSwitches, flag) != kSwitches.end();
}

/// Runs the job. No thread may start before the signal queue and the guard exist.
int run_job(launch::JobPlan plan, const RunOptions& options) {
  launch::SignalQueue signals;
  const launch::SecretFolder secret;
  launch::Guard guard(secret.folder(), secret.file(),
                      concat("TUTTI_JOB_ID=", *plan.variable("TUTTI_JOB_ID")));
  plan.add_variable("TUTTI_JOB_SECRET_FILE", secret.file());
  plan.add_variable("TUTTI_MAX_RESTARTS", concat(options.supervisor.max_restarts));
  const std::unique_ptr<ControlServer> control = options.has_control ? host_control(plan) : nullptr;
  if (control) plan.add_variable("TUTTI_CONTROL", control->target());
  launch::SupervisorOptions supervising = options.supervisor;
  if (control) supervising.find_given_up = find_given_up(*control);
  if (control) supervising.find_failed = find_failed(*control);
  if (control) supervising.find_waited_for = find_waited_for(*control);
  return launch::supervise(plan, supervising, signals, guard).exit_code();
}

}  // namespace

void RunFlags::declare(Flags& flags) {
  flags.add("-n", processes, "total number of processes (chief, workers and parameter servers)");
  flags.add("--workers", workers, "number of workers; default: derived from -n");
  flags.add("--ps", ps,
            "number of parameter servers, which are stopped when the chief and the workers have "
            "finished");
  flags.add("--chief", chief, "start a chief in addition to the workers");
  flags.add("--log-dir", log_dir, "folder for a log file of each process, such as worker-0.log");
  flags.add("--max-restarts", max_restarts,
            "largest number of restarts of each task whose process fails");
  flags.add("--grace", grace, "seconds between SIGTERM and SIGKILL");
  flags.add("--timeout", timeout, "time limit of the job in seconds; 0: no limit");
  flags.add("--env", environment,
            "environment variable NAME=VALUE for all processes; may be repeated");
  flags.add("--bind-cores", bind_cores, "bind each process to its share of the cores");
  flags.add_choice("--control", control, {"grpc", "none"},
                   "control server of the job: hosted by the launcher (grpc) or not (none)");
  flags.add("--dry-run", dry_run,
            "print the processes' commands and environments; start no process");
  flags.add("-v", verbose, "also show how the processes find each other (TUTTI_LOG_LEVEL=info)");
  flags.add("--hosts", hosts, "machines for --dry-run, such as a,b");
  flags.add("--port", port, "first port on each of --hosts");
  flags.add_footer(kFooter);
}

int RunFlags::take_program(int& argc, char** argv) {
  if (argc < 2 || std::string_view(argv[1]) != "run") return 0;
  char** const end = argv + argc;
  char** own_end = argv + 2;  // end of the flags of `tutti run`
  bool wants_help = false;
  while (own_end < end && own_end[0][0] == '-' && std::string_view(*own_end) != "--") {
    const std::string_view flag = *own_end++;
    wants_help = wants_help || flag == "--help" || flag == "-h";
    const bool has_value_in_it = flag.find('=') != flag.npos || (flag[1] != '-' && flag.size() > 2);
    if (!has_value_in_it && !is_switch(flag) && own_end < end) ++own_end;
  }
  const bool has_dashes = own_end < end && std::string_view(*own_end) == "--";
  program.assign(own_end + (has_dashes ? 1 : 0), end);
  if (!wants_help && program.empty()) {
    std::fprintf(stderr,
                 "tutti: run: expected a program, got none; use tutti run -n 2 ./program\n");
    return 2;
  }
  argc = static_cast<int>(own_end - argv);
  return 0;
}

int run_command(const RunFlags& flags) {
  RunOptions options;
  try {
    options = parse_run_options(flags);
    if (!options.dry_run) launch::allow_open_files_for(options.job.counts.total());
  } catch (const Error& error) {
    std::fprintf(stderr, "tutti: %s\n", error.what());
    return 2;
  }
  launch::JobPlan plan = launch::make_plan(options.job);
  if (options.dry_run) {
    std::printf("%s", launch::dry_run_text(plan).c_str());
    return 0;
  }
  try {
    return run_job(std::move(plan), options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNotFound) throw;
    // The program was deleted after the check, or the system cannot execute it.
    std::fprintf(stderr, "tutti: %s\n", error.what());
    return 2;
  }
}

}  // namespace tutti::tools
