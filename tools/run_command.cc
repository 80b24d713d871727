// `tutti run`: a program in several processes of this machine.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#include "tools/commands.h"
#include "tools/launch/open_files.h"
#include "tools/launch/secret_folder.h"
#include "tools/run_options.h"
#include "tutti/cluster/control/control_server.h"
#include "tutti/core/error.h"

namespace tutti::tools {
namespace {

int print_plan(const launch::JobPlan& plan, OutputFormat format) {
  if (format == OutputFormat::kJson) {
    std::printf("%s\n", launch::to_json(plan).dump(2).c_str());
  } else {
    std::printf("%s", launch::dry_run_text(plan).c_str());
  }
  return 0;
}

/// The job's store and its watch over the members, in a process that outlives all of theirs: who is
/// started again finds what was there. nullptr when the job brings its own, or there is nobody to
/// meet.
std::unique_ptr<ControlServer> host_control(const launch::JobPlan& plan, const std::string& wire) {
  if (wire == "none" || plan.variable("TUTTI_CONTROL") || std::getenv("TUTTI_CONTROL")) return {};
  ControlServerOptions options;
  options.wire = wire;
  options.job_id = *plan.variable("TUTTI_JOB_ID");
  options.secret = JobSecret::from_file(*plan.variable("TUTTI_JOB_SECRET_FILE"));
  // A step may take long; collectives have deadlines of their own.
  options.health.abort_stuck_after = std::chrono::minutes(10);
  for (const launch::ProcessPlan& process : plan.processes) {
    const launch::Task& task = process.task;
    // Servers come where the program's strategy serves.
    auto& members = task.type == "ps" ? options.welcome : options.expected;
    members.push_back({task.type, task.index, task.address});
  }
  options.linger = Duration::zero();  // it ends when all have ended
  return plan.processes.size() > 1 ? ControlServer::start(options) : nullptr;
}

/// A process that is stopped stays, and keeps its task: without this nobody would take its place,
/// and the job would not end.
std::function<std::vector<launch::GivenUp>()> find_given_up(const ControlServer& control) {
  return [&control, seen = std::uint64_t{0}]() mutable {
    std::vector<launch::GivenUp> found;
    for (const Verdict& verdict : control.verdicts_after(seen)) {
      seen = verdict.number;
      const bool is_out =
          verdict.kind == VerdictKind::kStopped || verdict.kind == VerdictKind::kDead;
      const launch::Task task{verdict.who.task.job, verdict.who.task.index, ""};
      if (!is_out) continue;
      found.push_back({task.name(), static_cast<int>(verdict.who.incarnation), verdict.message});
    }
    return found;
  };
}

std::function<std::vector<std::string>()> find_waited_for(const ControlServer& control) {
  return [&control] {
    std::vector<std::string> names;
    for (const Member& member : control.missing()) {
      names.push_back(launch::Task{member.task.job, member.task.index, ""}.name());
    }
    return names;
  };
}

/// A thread must not be started before signals and guard are there.
int run_job(launch::JobPlan plan, const RunOptions& options, OutputFormat format) {
  launch::SignalQueue signals;
  const launch::SecretFolder secret;
  launch::Guard guard(secret.folder(), secret.file(),
                      concat("TUTTI_JOB_ID=", *plan.variable("TUTTI_JOB_ID")));
  plan.add_variable("TUTTI_JOB_SECRET_FILE", secret.file());
  plan.add_variable("TUTTI_MAX_RESTARTS", concat(options.supervisor.restarts.per_task));
  const std::unique_ptr<ControlServer> control = host_control(plan, options.control);
  if (control) plan.add_variable("TUTTI_CONTROL", control->target());
  launch::ReporterOptions reporting = options.reporter;
  reporting.output_to_error = format == OutputFormat::kJson;
  launch::RunReporter reporter(plan, reporting);
  launch::SupervisorOptions supervising = options.supervisor;
  if (control) supervising.find_given_up = find_given_up(*control);
  if (control && supervising.restarts.per_task > 0) {
    supervising.find_waited_for = find_waited_for(*control);
  }
  launch::Supervisor supervisor(plan, supervising, signals, guard, reporter);
  const launch::JobOutcome outcome = supervisor.run();
  reporter.summarize(outcome);
  supervisor.hand_over_output();
  if (format == OutputFormat::kJson) {
    Json json = launch::to_json(outcome);
    json.set("job_id", plan.job_id);
    std::printf("%s\n", json.dump(2).c_str());
  }
  return outcome.exit_code();
}

}  // namespace

int run_command(const RunFlags& flags, OutputFormat format) {
  RunOptions options;
  try {
    options = parse_run_options(flags);
    if (!options.dry_run) launch::allow_open_files_for(options.job.counts.total());
  } catch (const Error& error) {
    std::fprintf(stderr, "tutti: %s\n", error.what());
    return 2;
  }
  launch::JobPlan plan = launch::make_plan(options.job);
  if (options.dry_run) return print_plan(plan, format);
  try {
    return run_job(std::move(plan), options, format);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNotFound) throw;
    std::fprintf(stderr, "tutti: %s\n", error.what());  // no program after all
    return 2;
  }
}

}  // namespace tutti::tools
