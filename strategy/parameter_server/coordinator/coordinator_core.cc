// A thread or two per worker take closures from the queue and wait for their outcomes.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/coordinator_core.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "cluster/control/member.h"
#include "core/names.h"
#include "strategy/parameter_server/coordinator/task_runner.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

ClosureQueueOptions queue_options(const ClusterCoordinatorOptions& options, int num_workers,
                                  std::function<bool(int)> is_present, std::uint64_t first_number,
                                  std::uint64_t generation) {
  if (options.most_queued < 1 || options.window < 1) {
    fail(ErrorCode::kInvalidArgument,
         "ClusterCoordinator: expected most_queued and window of at least 1, got ",
         options.most_queued, " and ", options.window);
  }
  const LedgerRules rules{options.most_attempts, options.most_workers_lost,
                          !options.checkpoint_folder.empty()};
  return {options.most_queued, options.window, num_workers, std::move(is_present), rules,
          first_number,        generation};
}

}  // namespace

CoordinatorCore::CoordinatorCore(CoordinatedStrategy& strategy, ClusterCoordinatorOptions options,
                                 std::uint64_t first_number, std::uint64_t generation)
    : strategy_(strategy),
      options_(std::move(options)),
      run_(strategy.server_group() != nullptr ? strategy.server_group()->run() : 0),
      queue_(queue_options(
          options_, strategy.num_workers(), [this](int worker) { return may_take(worker); },
          first_number, generation)) {
  MutexLock lock(desk_->mutex);
  desk_->core = this;
}

CoordinatorCore::~CoordinatorCore() {
  {
    MutexLock lock(desk_->mutex);
    desk_->core = nullptr;
  }
  over_.reset();
  watchdog_.reset();
  const bool has_failed = std::uncaught_exceptions() > 0 || queue_.is_stopped();
  if (checkpoint_ != nullptr && !has_failed) checkpoint_->finish();
  stop_.set();
  queue_.stop();
  if (checkpoint_ != nullptr) checkpoint_->stop();
  if (ServerGroup* const servers = strategy_.server_group()) {
    servers->servers().set_currency({});
    servers->watch({});
  }
  end_threads();
  links_.clear();
  CoordinatedStrategy::CoordinatorSlot& slot = strategy_.coordinator_slot();
  const MutexLock lock(slot.mutex);
  slot.next_number = std::max(slot.next_number, queue_.num_scheduled());
  slot.next_generation = std::max(slot.next_generation, queue_.generation() + 1);
}

std::optional<int> CoordinatorCore::serve() {
  if (!strategy_.must_serve()) return std::nullopt;
  if (is_starting_.exchange(true)) {
    fail(ErrorCode::kFailedPrecondition, "ClusterCoordinator::serve: was called already");
  }
  return strategy_.serve(registry_);
}

void CoordinatorCore::start() {
  if (strategy_.must_serve()) {
    fail(ErrorCode::kFailedPrecondition,
         "ClusterCoordinator::start: this task works for a chief elsewhere; try `if (const auto ",
         "code = coordinator.serve()) return *code;` before it");
  }
  if (is_starting_.exchange(true)) {
    fail(ErrorCode::kFailedPrecondition, "ClusterCoordinator::start: was called already");
  }
  over_ = strategy_.when_over([this](const std::string& why) {
    log(LogLevel::kError, concat("coordinator: ", why));
    stop_.set();
    queue_.stop(Error(ErrorCode::kUnavailable, why));
  });
  watch_servers();
  // Per-worker values of earlier coordinators are not those of this one.
  next_instance_.store((queue_.generation() - 1) << 32);
  for (int worker = 0; worker < strategy_.num_workers(); ++worker) {
    auto link = strategy_.connect_worker(worker, registry_);
    if (link != nullptr) {
      has_remote_workers_ = true;
    } else {
      link = std::make_unique<TaskRunner>(worker, strategy_, registry_);
    }
    link->watch([this] { queue_.wake_workers(); });
    links_.push_back(std::move(link));
  }
  if (has_remote_workers_) await_workers();
  start_threads();
  WatchdogOptions options = options_.watchdog;
  options.describe = [this] { return describe(); };
  watchdog_ = std::make_unique<Watchdog>(std::move(options), [this] { return queue_.num_ended(); });
  has_started_.store(true, std::memory_order_release);
}

/// One that was started with another program is a mistake to be told at once, not a worker less.
void CoordinatorCore::await_workers() {
  Clock& clock = Clock::system();
  const TimePoint begin = clock.now();
  const TimePoint deadline = deadline_after(begin, options_.join_timeout);
  TimePoint say_at = deadline_after(begin, durations::kSayAgainEvery);
  for (;;) {
    std::vector<std::string> missing;
    for (std::size_t i = 0; i < links_.size(); ++i) {
      const auto refusal = links_[i]->refusal();
      if (refusal) throw refusal->with_context("ClusterCoordinator::start");
      if (!links_[i]->is_alive()) missing.push_back(strategy_.worker_name(static_cast<int>(i)));
    }
    if (missing.empty()) return;
    const TimePoint now = clock.now();
    const std::string names =
        concat(tutti::join(missing), " since ", seconds_text(now - begin), " s");
    if (now >= deadline && missing.size() < links_.size()) {
      return log_warning(concat("coordinator: goes on without ", names));
    }
    if (now >= deadline) {
      fail(ErrorCode::kDeadlineExceeded, "ClusterCoordinator::start: no worker is there: waited ",
           "for ", names, "; start them, or check their logs");
    }
    if (now >= say_at) {
      log_info(concat("coordinator: waits for ", names));
      say_at = deadline_after(now, durations::kSayAgainEvery);
    }
    if (stop_.wait_until(deadline_after(now, std::chrono::milliseconds(5)))) {
      queue_.wait();  // throws why
    }
  }
}

void CoordinatorCore::watch_servers() {
  ServerGroup* const servers = strategy_.server_group();
  if (servers == nullptr && options_.checkpoint_folder.empty()) return;
  if (servers == nullptr) {
    fail(ErrorCode::kFailedPrecondition, "ClusterCoordinator: checkpoint_folder '",
         options_.checkpoint_folder, "': this strategy has no servers that can be saved");
  }
  if (const auto loss = servers->take_loss()) {
    fail(ErrorCode::kUnavailable, "ClusterCoordinator::start: ", *loss,
         "; variables were made there; start the job again");
  }
  if (!options_.checkpoint_folder.empty()) {
    checkpoint_ = std::make_unique<JobCheckpoint>(queue_, *servers, options_);
    servers->servers().set_currency([this] { return checkpoint_->wait_until_current(); });
    return;
  }
  servers->watch([this](const std::string& why) {
    queue_.stop(Error(ErrorCode::kUnavailable,
                      concat(why,
                             ", and its variables with it; expected it to live; try "
                             "ClusterCoordinatorOptions::checkpoint_folder")));
    return false;
  });
}

void CoordinatorCore::save_checkpoint(TimePoint deadline) {
  require_started("save_checkpoint");
  if (checkpoint_ == nullptr) {
    fail(ErrorCode::kFailedPrecondition, "save_checkpoint: there is no folder to save into; try ",
         "ClusterCoordinatorOptions::checkpoint_folder");
  }
  checkpoint_->save_now(deadline);
}

/// Called with the queue's lock held.
bool CoordinatorCore::may_take(int worker) const {
  if (checkpoint_ != nullptr && !checkpoint_->may_give_out()) return false;
  return links_[static_cast<std::size_t>(worker)]->is_alive();
}

void CoordinatorCore::start_threads() {
  const int num_per_worker = has_remote_workers_ ? options_.window : 1;
  for (int worker = 0; worker < strategy_.num_workers(); ++worker) {
    for (int i = 0; i < num_per_worker; ++i) {
      ++num_working_;
      threads_.push_back(Executor::system().start(concat("ps-worker-", worker), [this, worker] {
        work(worker);
        --num_working_;
      }));
    }
  }
}

void CoordinatorCore::end_threads() {
  for (const auto& link : links_) link->stop();
  TimePoint say_at = deadline_after(Clock::system().now(), durations::kSayAgainEvery);
  while (num_working_ > 0) {
    Clock::system().sleep_for(std::chrono::milliseconds(1));
    if (Clock::system().now() < say_at) continue;
    log_warning(concat("coordinator: is shut down, and still waits for steps: ", describe()));
    say_at = deadline_after(Clock::system().now(), durations::kSayAgainEvery);
  }
  threads_.clear();
}

void CoordinatorCore::work(int worker) {
  WorkerLink& link = *links_[static_cast<std::size_t>(worker)];
  const Duration look = std::clamp<Duration>(
      options_.most_absence / 4, std::chrono::milliseconds(1), std::chrono::seconds(10));
  const Duration delay = std::min(options_.start_delay * worker, options_.most_start_delay);
  TimePoint absent_since = Clock::system().now();
  if (stop_.wait_until(deadline_after(absent_since, delay))) return;
  try {
    while (!stop_.is_set() && !queue_.is_stopped()) {
      const auto handout = queue_.get(worker, deadline_after(Clock::system().now(), look));
      if (handout) {
        const ScheduledWork& work = *handout->work;
        take_outcome(*handout, link.run({handout->id, handout->attempt, run_, work.step(),
                                         work.arguments(), queue_.watermark(), handout->token}));
        absent_since = Clock::system().now();  // the closure may have taken long
      }
      if (worker == 0) give_up_if_nobody_comes(absent_since);
    }
  } catch (const std::exception& error) {
    cannot_go_on(concat("worker ", worker), error);
  }
}

void CoordinatorCore::give_up_if_nobody_comes(TimePoint& absent_since) {
  const TimePoint now = Clock::system().now();
  if (std::ranges::any_of(links_, [](const auto& each) { return each->is_alive(); })) {
    absent_since = now;
    return;
  }
  if (now - absent_since < options_.most_absence) return;
  queue_.fail_next(ErrorCode::kUnavailable, ErrorOrigin::kWorker,
                   concat("no worker was there for ", seconds_between(absent_since, now),
                          " s; expected one of ", links_.size(), " to come back"));
}

void CoordinatorCore::take_outcome(const ClosureQueue::Handout& handout, TaskOutcome outcome) {
  try {
    if (auto* value = std::get_if<Nest>(&outcome)) {
      const auto& result = handout.work->result();
      queue_.mark_finished(handout, [&] { result->set(std::move(*value)); });
      if (checkpoint_ != nullptr) checkpoint_->note_end();
    } else if (auto* report = std::get_if<AttemptReport>(&outcome)) {
      queue_.put_back(handout, std::move(*report));
    } else if (auto* failure = std::get_if<TaskFailure>(&outcome)) {
      AttemptReport transient{AttemptReport::Kind::kTransient, handout.worker, failure->origin,
                              failure->code, failure->text};
      if (checkpoint_ != nullptr && failure->origin == ErrorOrigin::kServer) {
        checkpoint_->put_back(handout, std::move(transient));
      } else if (failure->origin == ErrorOrigin::kWorker) {
        queue_.put_back(handout, std::move(transient));
      } else {
        queue_.mark_failed(handout, failure->code, failure->origin, std::move(failure->text));
      }
    } else {
      queue_.mark_stopped(handout);
    }
  } catch (const std::exception& error) {
    cannot_go_on(concat("closure ", handout.number), error);
  }
}

/// No other thread would end the waits of callers.
void CoordinatorCore::cannot_go_on(const std::string& where, const std::exception& error) {
  const std::string text = concat("coordinator: ", where, ": ", error.what());
  log(LogLevel::kError, text);
  queue_.stop(Error(ErrorCode::kInternal, text));
}

void CoordinatorCore::require_started(const char* who) const {
  if (has_started()) return;
  fail(ErrorCode::kFailedPrecondition, who,
       ": the coordinator was not started; try start(), after ", "the steps are defined");
}

RemoteValue CoordinatorCore::schedule(std::string_view step, Nest arguments) {
  require_started("schedule");
  const StepDefinition& definition = registry_.find(step);
  const Nest::List* list = arguments.list();
  if (list == nullptr || std::cmp_not_equal(list->size(), definition.num_parameters)) {
    fail(ErrorCode::kInvalidArgument, "schedule: expected arguments of ", definition.signature,
         ", got ", arguments.structure());
  }
  const auto work = std::make_shared<const ScheduledWork>(std::string(step), std::move(arguments));
  queue_.put(work);
  return RemoteValue(work->result());
}

PerWorkerHandle CoordinatorCore::new_handle(std::uint64_t id, std::string type) {
  PerWorkerHandle handle{id, next_instance_.fetch_add(1), std::move(type), {}};
  // Its values are dropped with the last copy; by then the coordinator may be gone.
  struct Owner {
    ~Owner() {
      MutexLock lock(desk->mutex);
      if (desk->core != nullptr) desk->core->release(handle);
    }
    std::shared_ptr<ReleaseDesk> desk;
    PerWorkerHandle handle;
  };
  const auto owner = std::make_shared<Owner>();
  owner->desk = desk_;
  owner->handle = handle;
  handle.owner = owner;
  return handle;
}

void CoordinatorCore::release(const PerWorkerHandle& handle) {
  if (!has_started()) return;
  for (const auto& link : links_) link->release(handle);
}

WorkerLink& CoordinatorCore::link(int worker) const {
  require_started("ClusterCoordinator::worker");
  if (worker < 0 || std::cmp_greater_equal(worker, links_.size())) {
    fail(ErrorCode::kOutOfRange, "ClusterCoordinator::worker: expected 0 to ", links_.size() - 1,
         ", got ", worker);
  }
  return *links_[static_cast<std::size_t>(worker)];
}

std::vector<Nest> CoordinatorCore::run_on_each(std::string_view step, Nest arguments) {
  require_started("run_on_each");
  (void)registry_.find(step);
  std::vector<Nest> values(links_.size());
  std::vector<std::exception_ptr> errors(links_.size());
  std::vector<std::unique_ptr<Thread>> threads;
  for (std::size_t i = 0; i < links_.size(); ++i) {
    if (!links_[i]->is_alive()) continue;
    threads.push_back(Executor::system().start(concat("ps-step-", i), [&, i] {
      WorkerTask task;
      task.step = step;
      task.arguments = arguments;
      task.token = std::make_shared<CancellationToken>();
      TaskOutcome outcome = links_[i]->run(task);
      if (auto* value = std::get_if<Nest>(&outcome)) values[i] = std::move(*value);
      if (auto* failure = std::get_if<TaskFailure>(&outcome)) {
        errors[i] = std::make_exception_ptr(
            OriginError(failure->origin, failure->code, std::move(failure->text)));
      }
    }));
  }
  threads.clear();  // joins
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return values;
}

std::string CoordinatorCore::describe() const {
  std::string text = concat(queue_.num_queued(), " closures queued, ", queue_.num_running(),
                            " with workers, ", queue_.num_ended(), " ended");
  for (std::size_t i = 0; i < links_.size(); ++i) {
    text += concat("\n  ", strategy_.worker_name(static_cast<int>(i)), ": ", links_[i]->doing());
  }
  return text;
}

}  // namespace tutti::internal
