// The main loop of `tutti run`: signals, exits, restarts and deadlines.
// SPDX-License-Identifier: Apache-2.0
#include "tools/launch/supervisor.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <deque>
#include <memory>

#include "tools/launch/run_reporter.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/error.h"

namespace tutti::launch {
namespace {

constexpr int kWrongUsage = 2;  // exit code for wrong usage, which a restart would repeat
constexpr Duration kQuick = std::chrono::seconds(1);
constexpr int kQuickFailures = 5;
constexpr Duration kRestartPause = std::chrono::milliseconds(10);
constexpr std::size_t kLastLines = 12;
constexpr const char* kBeforeOthersFinished = "before the other tasks finished";

/// Returns the exit code of a job that was requested to stop: the code of the first task that
/// failed; if none failed, 75 if a task saved a checkpoint, else 0. If any task saved a checkpoint,
/// tasks that the stop signal killed do not count as failed: they may have removed their handlers
/// while leaving the job.
int code_after_request(const std::vector<TaskOutcome>& tasks, int stop_signal) {
  const TaskOutcome* first = nullptr;
  const auto has_saved = [](const TaskOutcome& task) {
    return task.status.shell_code() == kStoppedOnRequest;
  };
  const bool any_saved = std::ranges::any_of(tasks, has_saved);
  for (const TaskOutcome& task : tasks) {
    const bool was_asked = task.status.signal != 0 && task.status.signal == stop_signal;
    if (task.status.success() || has_saved(task) || (was_asked && any_saved)) continue;
    if (!first || task.order < first->order) first = &task;
  }
  if (first) return first->status.shell_code();
  return any_saved ? kStoppedOnRequest : 0;
}

}  // namespace

std::optional<std::string> RestartCount::refusal(const ExitStatus& status, Duration lived) {
  if (lived >= kQuick) {
    quick_failures_ = 0;
  } else if (!status.killed_from_outside()) {  // being killed from outside does not count
    ++quick_failures_;
  }
  if (limit_ == 0) return "";
  if (status == ExitStatus{kWrongUsage, 0}) return "wrong usage would fail again";
  if (restarts_ >= limit_) {
    return concat("it was already restarted ",
                  restarts_ == 1 ? "once" : concat(restarts_, " times"));
  }
  if (quick_failures_ >= kQuickFailures) {
    return concat("it failed within a second ", quick_failures_, " times in a row");
  }
  ++restarts_;
  return std::nullopt;
}

std::string TaskOutcome::describe() const {
  std::array<char, 32> time{};
  std::snprintf(time.data(), time.size(), "%.1f", seconds);
  return concat(status.to_string(), oom.empty() ? "" : ", ", oom, too_early.empty() ? "" : " ",
                too_early, too_early.empty() ? " after " : ", after ", time.data(), " s");
}

int JobOutcome::exit_code() const {
  if (first_failure) {
    const int code = tasks[static_cast<std::size_t>(*first_failure)].status.shell_code();
    return code == 0 ? 1 : code;  // code 0: it exited too early
  }
  switch (reason) {
    case StopReason::kTimeout:
      return kTimedOut;
    case StopReason::kSignal:
    case StopReason::kTaskAsked:
      return code_after_request(tasks, stop_signal);
    default:
      return 0;
  }
}

namespace {

bool is_stop_signal(int number) {
  return number == SIGINT || number == SIGTERM || number == SIGHUP;
}

/// A task and its current process.
struct Slot {
  Slot(int number, const ProcessPlan& process, int max_restarts)
      : rank(number), plan(&process), count(max_restarts) {
    outcome.task = process.task.name();
  }

  bool is_server() const { return plan->task.type == "ps"; }
  /// Returns true if the task has no process that is running or about to be restarted.
  bool has_finished() const { return !running && !restart_at; }

  int rank;
  const ProcessPlan* plan;
  RestartCount count;
  std::unique_ptr<ChildProcess> process;
  TimePoint started;
  Duration lived{};  // lifetime of the last process
  std::optional<TimePoint> restart_at;
  std::optional<TimePoint> given_up_at;  // kill deadline of a process that the job gave up on
  std::string why_given_up;
  bool running = false;
  std::deque<std::string> last_lines;
  TaskOutcome outcome;
};

/// State of a job's processes, and the loop that runs them.
struct Supervisor {
  Supervisor(const JobPlan& job, const SupervisorOptions& chosen, SignalQueue& queue,
             Guard& watcher)
      : plan(job), options(chosen), signals(queue), guard(watcher), reporter(job, chosen) {
    for (const ProcessPlan& process : plan.processes) {
      slots.emplace_back(static_cast<int>(slots.size()), process, options.max_restarts);
    }
  }

  TimePoint now() const { return Clock::system().now(); }

  void start(Slot& slot) {
    ChildOptions child{plan.arguments, slot.plan->environment, slot.plan->cores};
    const int restarts = slot.count.restarts();
    for (auto& [name, value] : child.environment) {
      if (name == "TUTTI_RESTART") value = std::to_string(restarts);
    }
    slot.restart_at.reset();
    slot.given_up_at.reset();
    slot.process = std::make_unique<ChildProcess>(child);
    slot.last_lines.clear();
    slot.outcome.too_early.clear();
    guard.watch(slot.process->pid());
    slot.running = true;
    slot.started = now();
    slot.outcome.restarts = restarts;
    reporter.on_start(slot.rank, restarts);
  }

  /// Restarts a task. Fails the job if the program no longer exists or is being rebuilt.
  void start_again(Slot& slot) {
    try {
      start(slot);
    } catch (const Error& error) {
      fail_job(slot, error.message());
      slot.outcome.order = num_ended++;
    }
  }

  ChildProcess::OnLine line_sink(Slot& slot) {
    return [this, &slot](Stream stream, std::string_view line) {
      if (slot.last_lines.size() == kLastLines) slot.last_lines.pop_front();
      slot.last_lines.emplace_back(line);
      reporter.on_line(slot.rank, stream, line);
    };
  }

  /// Returns the slot of a task; nullptr if the job has no such task.
  Slot* find(const std::string& task) {
    const auto is_it = [&](const Slot& slot) { return slot.outcome.task == task; };
    const auto found = std::ranges::find_if(slots, is_it);
    return found == slots.end() ? nullptr : &*found;
  }

  std::vector<int> running_ranks() const {
    std::vector<int> ranks;
    for (const Slot& slot : slots) {
      if (slot.running) ranks.push_back(slot.rank);
    }
    return ranks;
  }

  bool active() const { return !std::ranges::all_of(slots, &Slot::has_finished); }

  void send_to_all(int number) {
    for (Slot& slot : slots) {
      if (slot.running) slot.process->send(number);
    }
  }

  // --- End of the job.

  void stop(StopReason why, int number) {
    reason = why;
    stop_signal = number;
    kill_at = deadline_after(now(), options.grace);
    for (Slot& slot : slots) slot.restart_at.reset();
    reporter.on_stop(why, number, running_ranks());
    send_to_all(number);
    send_to_all(SIGCONT);  // a stopped process handles no signals
  }

  void kill_all() {
    kill_at.reset();
    if (running_ranks().empty()) return;
    reporter.on_kill(running_ranks());
    send_to_all(SIGKILL);
  }

  void on_signal(int number) {
    if (!is_stop_signal(number)) {
      send_to_all(number);
    } else if (!stop_signal_seen) {
      stop_signal_seen = true;
      if (reason == StopReason::kNone) stop(StopReason::kSignal, number);
    } else {
      kill_all();
    }
  }

  // --- Exit of processes.

  void fail_job(Slot& slot, const std::string& why_final) {
    first_failure = slot.rank;
    reporter.on_first_failure(slot.rank, slot.outcome, slot.last_lines, why_final);
    stop(StopReason::kFailure, SIGTERM);
  }

  void judge(Slot& slot) {
    const ExitStatus status = slot.outcome.status;
    if (reason == StopReason::kNone && !status.success() && status.code != kStoppedOnRequest) {
      if (judge_failure(slot)) return;
    } else if (reason == StopReason::kNone && status.code == kStoppedOnRequest) {
      stop(StopReason::kTaskAsked, SIGTERM);
    }
    slot.outcome.order = num_ended++;
  }

  /// Schedules the restart of a failed task and returns true, or ends the job and returns false.
  bool judge_failure(Slot& slot) {
    const std::optional<std::string> refusal = slot.count.refusal(slot.outcome.status, slot.lived);
    if (!refusal) {
      schedule_restart(slot);
    } else if (Slot* const cause = early_exit_before(slot)) {
      cause->outcome.too_early = kBeforeOthersFinished;
      fail_job(*cause, *refusal);
    } else {
      fail_job(slot, *refusal);
    }
    return !refusal;
  }

  void schedule_restart(Slot& slot) {
    slot.restart_at = deadline_after(now(), kRestartPause);
    reporter.on_restart(slot.outcome);
  }

  /// Returns the slot of the process that the job considers the first cause of a failure, if that
  /// process exited with code 0 and is not `failed`; otherwise nullptr.
  Slot* early_exit_before(const Slot& failed) {
    const std::vector<const Slot*> causes = known_causes();
    if (causes.empty() || causes.front() == &failed) return nullptr;
    Slot& first = slots[static_cast<std::size_t>(causes.front()->rank)];
    return first.has_finished() && first.outcome.status.success() ? &first : nullptr;
  }

  void collect(Slot& slot, long oom_kills) {
    slot.process->finish_lines(line_sink(slot));
    if (oom_kills > 0 && slot.outcome.status.signal == SIGKILL) {
      slot.outcome.oom = oom.describe(oom_kills);
    }
    judge(slot);
  }

  /// Collects processes that have exited, likely causes first: processes killed from outside, then
  /// the remaining ones in the order in which the job detected their failures.
  void reap() {
    std::vector<Slot*> ended;
    take_ended(ended);
    const TimePoint patience = deadline_after(now(), durations::kOneTry);
    const auto has_failed = [](const Slot* slot) { return !slot->outcome.status.success(); };
    while (std::ranges::any_of(ended, has_failed) && is_cause_still_ending() && now() < patience) {
      Clock::system().sleep_for(std::chrono::milliseconds(1));
      for (Slot& slot : slots) {
        if (slot.running) slot.process->read_lines(line_sink(slot));  // full pipes block processes
      }
      kill_given_up();
      take_ended(ended);
    }
    const std::vector<const Slot*> causes = known_causes();
    std::ranges::stable_sort(ended, {}, [&](const Slot* slot) {
      return std::pair(!slot->outcome.status.killed_from_outside(),
                       std::ranges::find(causes, slot));
    });
    const long kills = ended.empty() ? 0 : oom.count_new_kills();
    for (Slot* const slot : ended) collect(*slot, kills);
    // Does not reap the processes in `own`: one may have ended after the check above, and the next
    // iteration must read its status.
    std::vector<pid_t> own{guard.pid()};
    for (const Slot& slot : slots) {
      if (slot.running) own.push_back(slot.process->pid());
    }
    reap_adopted(own);
    stop_parameter_servers();
  }

  /// Returns the slots of the processes known to have failed, in the order of their failures.
  std::vector<const Slot*> known_causes() {
    std::vector<const Slot*> causes;
    if (!options.find_failed) return causes;
    for (const TaskProcess& failed : options.find_failed()) {
      const Slot* const slot = find(failed.task);
      if (slot && slot->outcome.restarts == failed.restarts) causes.push_back(slot);
    }
    return causes;
  }

  /// Returns true if the process that caused the failure may still be exiting. A process whose
  /// connections are closed, or that has reported its failure, may exit later than processes that
  /// fail because of it.
  bool is_cause_still_ending() {
    const auto is_ending = [](const Slot& slot) {
      return slot.running && slot.process->is_ending();
    };
    if (std::ranges::any_of(slots, is_ending)) return true;
    const std::vector<const Slot*> causes = known_causes();
    return !causes.empty() && causes.front()->running;
  }

  void take_ended(std::vector<Slot*>& ended) {
    for (Slot& slot : slots) {
      if (!slot.running) continue;
      const std::optional<ExitStatus> status = slot.process->try_wait();
      if (!status) continue;
      guard.forget(slot.process->pid());
      slot.running = false;
      slot.outcome.status = *status;
      slot.lived = now() - slot.started;
      slot.outcome.seconds = seconds_between(slot.started, now());
      ended.push_back(&slot);
    }
  }

  /// Stops the parameter servers, which never exit on their own, once the chief and the workers
  /// have finished.
  void stop_parameter_servers() {
    if (reason != StopReason::kNone || !active()) return;
    const bool only_ps = std::ranges::all_of(
        slots, [](const Slot& slot) { return slot.is_server() || slot.has_finished(); });
    if (only_ps && !std::ranges::all_of(slots, &Slot::is_server))
      stop(StopReason::kFinished, SIGTERM);
  }

  void kill_given_up() {
    if (!options.find_given_up || reason != StopReason::kNone) return;
    for (AbandonedProcess& given_up : options.find_given_up()) {
      Slot* const slot = find(given_up.task);
      if (!slot || !slot->running || slot->outcome.restarts != given_up.restarts) continue;
      const Duration patience = given_up.is_ending ? durations::kOneTry : Duration::zero();
      slot->given_up_at = deadline_after(now(), patience);
      slot->why_given_up = std::move(given_up.why);
    }
    for (Slot& slot : slots) {
      if (!slot.running || !slot.given_up_at || now() < *slot.given_up_at) continue;
      slot.given_up_at.reset();
      if (slot.process->has_ended()) continue;
      reporter.on_given_up(slot.rank, slot.why_given_up);
      slot.process->send(SIGKILL);
    }
  }

  void start_waited_for() {
    if (!options.find_waited_for || reason != StopReason::kNone) return;
    const auto waiting = std::ranges::find_if(
        slots, [](const Slot& slot) { return slot.running && slot.outcome.restarts > 0; });
    for (const AwaitedTask& one : options.find_waited_for()) {
      Slot* const slot = find(one.task);
      if (!slot || !slot->has_finished() || reason != StopReason::kNone) continue;
      const bool has_joined = one.joined == slot->outcome.restarts;
      if (has_joined && waiting != slots.end()) {
        restart_finished(*slot, *waiting, one.may_repeat);
      } else {
        slot->outcome.too_early = has_joined ? kBeforeOthersFinished : "before it joined";
        judge_failure(*slot);
      }
    }
  }

  void restart_finished(Slot& finished, Slot& waiting, bool may_repeat) {
    // Parameter servers already have the task's updates, which a second process would apply again.
    const std::optional<std::string> refusal =
        !may_repeat && std::ranges::any_of(slots, &Slot::is_server)
            ? std::optional<std::string>("the parameter servers have its updates")
            : finished.count.refusal(finished.outcome.status, Duration::max());
    if (!refusal) {
      reporter.on_waited_for(finished.rank, waiting.rank);
      schedule_restart(finished);
      return;
    }
    waiting.process->send(SIGKILL);
    fail_job(waiting, concat(finished.outcome.task,
                             " has finished and cannot repeat the last steps with it: ", *refusal));
  }

  // --- Deadlines.

  std::optional<TimePoint> next_deadline() const {
    std::optional<TimePoint> next = kill_at;
    const auto consider = [&](const std::optional<TimePoint>& time) {
      if (time && (!next || *time < *next)) next = time;
    };
    if (reason == StopReason::kNone) consider(job_deadline);
    for (const Slot& slot : slots) consider(slot.restart_at);
    if (options.find_given_up) consider(deadline_after(now(), durations::kTryAgain));
    return next;
  }

  void check_deadlines() {
    const TimePoint time = now();
    if (reason == StopReason::kNone && job_deadline && time >= *job_deadline) {
      stop(StopReason::kTimeout, SIGTERM);
    }
    if (kill_at && time >= *kill_at) kill_all();
    for (Slot& slot : slots) {
      if (slot.restart_at && time >= *slot.restart_at) start_again(slot);
    }
  }

  int milliseconds_until(TimePoint time) const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(time - now()).count();
    return static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000));
  }

  /// Returns the descriptors of the launcher's signal queue and of its unwritten output.
  std::vector<pollfd> fds_of_launcher() const {
    std::vector<pollfd> fds{{signals.fd(), POLLIN, 0}};
    for (const int fd : reporter.waits_for_room()) fds.push_back({fd, POLLOUT, 0});
    return fds;
  }

  void forward_output() {
    const bool was_stopped = reason == StopReason::kSignal || reason == StopReason::kTimeout;
    std::optional<TimePoint> deadline = job_deadline;
    if (was_stopped) deadline = deadline_after(now(), options.grace);
    for (reporter.write_more(); !reporter.waits_for_room().empty(); reporter.write_more()) {
      std::vector<pollfd> fds = fds_of_launcher();
      ::poll(fds.data(), fds.size(), deadline ? milliseconds_until(*deadline) : -1);
      const std::vector<int> numbers = signals.take();
      const bool is_asked = std::ranges::any_of(numbers, is_stop_signal);
      if (is_asked || (deadline && now() >= *deadline)) return;
    }
  }

  /// Waits for the next event and handles all events.
  void handle_events() {
    reporter.write_more();
    std::vector<pollfd> fds = fds_of_launcher();
    std::size_t next = fds.size();
    const bool reads = reporter.takes_lines();
    for (const Slot& slot : slots) {
      if (!slot.running || !reads) continue;
      for (const Stream stream : {Stream::kOutput, Stream::kError}) {
        fds.push_back({slot.process->fd(stream), POLLIN, 0});
      }
    }
    const std::optional<TimePoint> deadline = next_deadline();
    ::poll(fds.data(), fds.size(), deadline ? milliseconds_until(*deadline) : -1);
    for (Slot& slot : slots) {
      if (!slot.running || !reads) continue;
      const bool readable = fds[next].revents != 0 || fds[next + 1].revents != 0;
      next += 2;
      if (readable) slot.process->read_lines(line_sink(slot));
    }
    bool child_ended = false;
    for (const int number : signals.take()) {
      if (number == SIGCHLD) {
        child_ended = true;
      } else {
        on_signal(number);
      }
    }
    if (child_ended) reap();
    kill_given_up();
    start_waited_for();
    check_deadlines();
  }

  /// Runs all processes until they end.
  void run() {
    // Orphaned descendants become children of this process, so that it can end them.
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (options.timeout) job_deadline = deadline_after(now(), *options.timeout);
    try {
      for (Slot& slot : slots) start(slot);
      while (active()) handle_events();
    } catch (...) {
      for (Slot& slot : slots) slot.process.reset();
      end_adopted({guard.pid()});
      throw;
    }
    end_adopted({guard.pid()});
  }

  JobOutcome outcome() const {
    JobOutcome result{{}, first_failure, reason, stop_signal};
    for (const Slot& slot : slots) result.tasks.push_back(slot.outcome);
    return result;
  }

  const JobPlan& plan;
  const SupervisorOptions& options;
  SignalQueue& signals;
  Guard& guard;
  RunReporter reporter;
  OomCounter oom;
  std::vector<Slot> slots;
  StopReason reason = StopReason::kNone;
  int stop_signal = 0;
  bool stop_signal_seen = false;
  std::optional<TimePoint> kill_at, job_deadline;
  std::optional<int> first_failure;
  int num_ended = 0;
};

}  // namespace

JobOutcome supervise(const JobPlan& plan, const SupervisorOptions& options, SignalQueue& signals,
                     Guard& guard) {
  Supervisor supervisor(plan, options, signals, guard);
  supervisor.run();
  const JobOutcome outcome = supervisor.outcome();
  supervisor.reporter.summarize(outcome);
  supervisor.forward_output();
  return outcome;
}

}  // namespace tutti::launch
