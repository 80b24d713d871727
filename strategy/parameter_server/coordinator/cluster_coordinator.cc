// The coordinator: threads for each worker, which take closures from the queue and await outcomes;
// the watchdog; the handles of the coordinator, of results and of per-worker datasets.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/coordinator/cluster_coordinator.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "cluster/control/member.h"
#include "core/names.h"
#include "core/process_probe.h"
#include "strategy/parameter_server/coordinator/coordinator_core.h"
#include "strategy/parameter_server/coordinator/worker_service.h"
#include "tutti/autograd/variable.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/logging.h"
#include "tutti/core/text.h"

namespace tutti::internal {
namespace {

ClosureQueueOptions queue_options(const ClusterCoordinatorOptions& options, int num_workers,
                                  std::function<bool(int)> is_present, std::uint64_t first_number,
                                  std::uint64_t generation) {
  if (options.most_queued < 1 || options.window < 1 || options.most_attempts < 1) {
    fail(ErrorCode::kInvalidArgument,
         "ClusterCoordinator: expected most_queued, window and most_attempts >= 1, got ",
         options.most_queued, ", ", options.window, " and ", options.most_attempts);
  }
  const LedgerRules rules{options.most_attempts, !options.checkpoint_folder.empty()};
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
  MutexLock lock(release_registry_->mutex);
  release_registry_->core = this;
}

CoordinatorCore::~CoordinatorCore() {
  {
    MutexLock lock(release_registry_->mutex);
    release_registry_->core = nullptr;
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
    fail(ErrorCode::kFailedPrecondition,
         "ClusterCoordinator::serve: called twice; expected one call");
  }
  return strategy_.serve(registry_);
}

void CoordinatorCore::start() {
  if (strategy_.must_serve()) {
    fail(ErrorCode::kFailedPrecondition,
         "ClusterCoordinator::start: the chief of this task is another process; call "
         "`if (const auto code = coordinator.serve()) return *code;` before start()");
  }
  if (is_starting_.exchange(true)) {
    fail(ErrorCode::kFailedPrecondition,
         "ClusterCoordinator::start: called twice; expected one call");
  }
  over_ = strategy_.when_over([this](const std::string& why) {
    log(LogLevel::kError, concat("coordinator: ", why));
    stop_.set();
    queue_.stop(Error(ErrorCode::kUnavailable, why));
  });
  watch_servers();
  // Starts above earlier coordinators' instance numbers, which must not be reused.
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
  watchdog_ = std::make_unique<Watchdog>(
      options_.watchdog_timeout, [this] { return queue_.num_ended(); },
      [this] { return describe(); });
  has_started_.store(true, std::memory_order_release);
}

/// Waits for the workers to join. Throws immediately if a worker runs a different program.
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
    const std::string names = tutti::join(missing), time = seconds_text(now - begin);
    if (now >= deadline && missing.size() < links_.size()) {
      return log_warning(concat("coordinator: continuing without ", names,
                                ", which did not join within ", time, " s"));
    }
    if (now >= deadline) {
      fail(ErrorCode::kDeadlineExceeded, "ClusterCoordinator::start: no worker joined within ",
           time, " s: waited for ", names, "; start them, or check their logs");
    }
    if (now >= say_at) {
      log_warning(concat("coordinator: has been waiting ", time, " s for ", names));
      say_at = deadline_after(now, durations::kSayAgainEvery);
    }
    if (stop_.wait_until(deadline_after(now, std::chrono::milliseconds(5)))) {
      queue_.wait();  // throws the error that stopped the queue
    }
  }
}

void CoordinatorCore::watch_servers() {
  ServerGroup* const servers = strategy_.server_group();
  if (servers == nullptr && options_.checkpoint_folder.empty()) return;
  if (servers == nullptr) {
    fail(ErrorCode::kFailedPrecondition, "ClusterCoordinator: checkpoint_folder '",
         options_.checkpoint_folder, "': this strategy has no servers to save");
  }
  if (const auto loss = servers->take_loss()) {
    fail(ErrorCode::kUnavailable, "ClusterCoordinator::start: ", *loss,
         "; variables were created on this server; start the job again");
  }
  if (!options_.checkpoint_folder.empty()) {
    checkpoint_ = std::make_unique<JobCheckpoint>(queue_, *servers, options_);
    servers->servers().set_currency([this] { return checkpoint_->wait_until_current(); });
    return;
  }
  servers->watch([this](const std::string& why) {
    queue_.stop(Error(ErrorCode::kUnavailable,
                      concat(why,
                             "; its variables are lost; expected the server to stay alive; use "
                             "ClusterCoordinatorOptions::checkpoint_folder")));
    return false;
  });
}

void CoordinatorCore::save_checkpoint(TimePoint deadline) {
  require_started("save_checkpoint");
  if (checkpoint_ == nullptr) {
    fail(ErrorCode::kFailedPrecondition, "save_checkpoint: there is no folder to save into; set ",
         "ClusterCoordinatorOptions::checkpoint_folder");
  }
  checkpoint_->save_now(deadline);
}

/// Returns true if the worker may receive a closure now. Requires: the queue's lock held.
bool CoordinatorCore::may_take(int worker) const {
  if (checkpoint_ != nullptr && !checkpoint_->may_assign()) return false;
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
    log_warning(concat("coordinator: shutting down, still waiting for steps: ", describe()));
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
      const auto assigned = queue_.get(worker, deadline_after(Clock::system().now(), look));
      if (assigned) {
        const ScheduledWork& work = *assigned->work;
        accept_outcome(*assigned,
                       link.run({assigned->id, assigned->attempt, run_, work.step(),
                                 work.arguments(), queue_.watermark(), assigned->token}));
        absent_since = Clock::system().now();  // time in a closure does not count as absence
      }
      if (worker == 0) fail_if_no_worker_joins(absent_since);
    }
  } catch (const std::exception& error) {
    stop_after_error(concat("worker ", worker), error);
  }
}

void CoordinatorCore::fail_if_no_worker_joins(TimePoint& absent_since) {
  const TimePoint now = Clock::system().now();
  if (std::ranges::any_of(links_, [](const auto& each) { return each->is_alive(); })) {
    absent_since = now;
    return;
  }
  if (now - absent_since < options_.most_absence) return;
  queue_.fail_next(ErrorCode::kUnavailable, ErrorOrigin::kWorker,
                   concat("no worker was connected for ", seconds_between(absent_since, now),
                          " s; expected one of ", links_.size(), " to reconnect"));
}

void CoordinatorCore::accept_outcome(const ClosureQueue::AssignedClosure& assigned,
                                     TaskOutcome outcome) {
  using Kind = AttemptReport::Kind;
  try {
    if (auto* value = std::get_if<Nest>(&outcome)) {
      const auto& result = assigned.work->result();
      queue_.mark_finished(assigned, [&] { result->set(std::move(*value)); });
      if (checkpoint_ != nullptr) checkpoint_->note_end();
      return;
    }
    auto& report = std::get<AttemptReport>(outcome);
    const bool has_failed = report.kind == Kind::kFailed;
    if (report.kind == Kind::kStopped) {
      queue_.mark_stopped(assigned);
      return;
    }
    const bool is_of_server = report.origin == ErrorOrigin::kServer && checkpoint_ != nullptr;
    if (has_failed && is_of_server) checkpoint_->note_trouble();
    if (has_failed && !is_of_server && report.origin != ErrorOrigin::kWorker) {
      queue_.mark_failed(assigned, report.code, report.origin, std::move(report.text));
    } else {
      queue_.put_back(assigned, std::move(report));
    }
  } catch (const std::exception& error) {
    stop_after_error(concat("closure ", assigned.number), error);
  }
}

/// Stops the queue, because callers would otherwise wait indefinitely.
void CoordinatorCore::stop_after_error(const std::string& where, const std::exception& error) {
  const std::string text = concat("coordinator: ", where, ": ", error.what());
  log(LogLevel::kError, text);
  queue_.stop(Error(ErrorCode::kInternal, text));
}

void CoordinatorCore::require_started(const char* who) const {
  if (has_started()) return;
  fail(ErrorCode::kFailedPrecondition, who,
       ": the coordinator was not started; call start() after ", "defining the steps");
}

RemoteValue CoordinatorCore::schedule(std::string_view step, Nest arguments) {
  require_started("schedule");
  const StepDefinition& definition = registry_.find(step);
  const Nest::List* list = arguments.list();
  if (list == nullptr || std::cmp_not_equal(list->size(), definition.num_parameters)) {
    fail(ErrorCode::kInvalidArgument, "schedule: expected arguments matching ",
         definition.signature, ", got ", arguments.structure());
  }
  const auto work = std::make_shared<const ScheduledWork>(std::string(step), std::move(arguments));
  queue_.put(work);
  return RemoteValue(work->result());
}

PerWorkerHandle CoordinatorCore::new_handle(std::uint64_t id, std::string type) {
  PerWorkerHandle handle{id, next_instance_.fetch_add(1), std::move(type), {}};
  // Destroying the last copy of the handle drops the values, if the coordinator still exists.
  struct Owner {
    ~Owner() {
      MutexLock lock(release_registry->mutex);
      if (release_registry->core != nullptr) release_registry->core->release(handle);
    }
    std::shared_ptr<ReleaseRegistry> release_registry;
    PerWorkerHandle handle;
  };
  const auto owner = std::make_shared<Owner>();
  owner->release_registry = release_registry_;
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

std::string CoordinatorCore::describe() const {
  std::string text = concat(queue_.num_queued(), " closures queued, ", queue_.num_running(),
                            " with workers, ", queue_.num_ended(), " ended");
  for (std::size_t i = 0; i < links_.size(); ++i) {
    text += concat("\n  ", strategy_.worker_name(static_cast<int>(i)), ": ", links_[i]->doing());
  }
  return text;
}

}  // namespace tutti::internal

namespace tutti {

// The watchdog.

Watchdog::Watchdog(Duration timeout, std::function<std::uint64_t()> count,
                   std::function<std::string()> describe)
    : timeout_(timeout), count_(std::move(count)), describe_(std::move(describe)) {
  if (timeout_ <= Duration::zero()) return;
  thread_ = Executor::system().start("ps-watchdog", [this] { run(); });
}

Watchdog::~Watchdog() { stop_.set(); }

void Watchdog::run() {
  Clock& clock = Clock::system();
  std::uint64_t last_count = count_();
  TimePoint since = clock.now();
  while (!stop_.wait_until(deadline_after(clock.now(), timeout_ / 10))) {
    const std::uint64_t count = count_();
    if (std::exchange(last_count, count) != count) since = clock.now();
    if (clock.now() - since < timeout_) continue;
    log(LogLevel::kError,
        concat("coordinator: no closure finished for ", seconds_between(since, clock.now()), " s; ",
               describe_(), "\nstacks of all threads:\n", stacks_of_all_threads()));
    since = clock.now();
  }
}

}  // namespace tutti

// The handles.

namespace tutti {
namespace {

/// VariableCreator that rejects variables created by a dataset function.
class NoVariables final : public VariableCreator {
 public:
  std::shared_ptr<VariableStorage> create(const Variable::Initializer&, const RandomKey&,
                                          VariableOptions options) override {
    fail(ErrorCode::kInvalidArgument,
         "create_per_worker_dataset: the dataset function created variable '", options.name,
         "'; expected no variables; create them in the strategy's scope");
  }
};

}  // namespace

namespace internal {

void RemoteResult::end(RemoteValueState state, Nest value, std::exception_ptr error) {
  MutexLock lock(mutex_);
  state_ = state;
  value_ = std::move(value);
  error_ = std::move(error);
  condition_.notify_all();
}

RemoteValueState RemoteResult::state() const {
  MutexLock lock(mutex_);
  return state_;
}

Nest RemoteResult::get(TimePoint deadline) const {
  MutexLock lock(mutex_);
  const bool in_time = condition_.wait_until(mutex_, deadline, [this]() TUTTI_REQUIRES(mutex_) {
    return state_ != RemoteValueState::kNotReady;
  });
  if (!in_time) {
    fail(ErrorCode::kDeadlineExceeded,
         "fetch: the closure had not ended by the deadline; try a later deadline");
  }
  if (error_) std::rethrow_exception(error_);
  return value_;
}

}  // namespace internal

std::optional<Batch> DatasetIterator::try_next() {
  std::optional<Element> element = elements_->next();
  if (!element) return std::nullopt;
  return Batch(std::move(*element));
}

Batch DatasetIterator::next() {
  if (std::optional<Batch> batch = try_next()) return std::move(*batch);
  fail(ErrorCode::kOutOfRange,
       "DatasetIterator::next: this worker's dataset has ended; call repeat(), or try_next()");
}

std::optional<PerReplica<Batch>> DistributedIterator::try_next() {
  if (!place_) {
    place_ = dataset_.begin();
  } else if (*place_ != dataset_.end()) {
    ++*place_;
  }
  if (*place_ == dataset_.end()) return std::nullopt;
  return **place_;
}

PerReplica<Batch> DistributedIterator::next() {
  if (auto batches = try_next()) return std::move(*batches);
  fail(ErrorCode::kOutOfRange,
       "DistributedIterator::next: the dataset of this worker has ended; call repeat(), or "
       "try_next()");
}

ClusterCoordinator::ClusterCoordinator(CoordinatedStrategy& strategy,
                                       ClusterCoordinatorOptions options) {
  CoordinatedStrategy::CoordinatorSlot& slot = strategy.coordinator_slot();
  MutexLock lock(slot.mutex);
  core_ = std::static_pointer_cast<internal::CoordinatorCore>(slot.coordinator.lock());
  if (core_ != nullptr) return;
  core_ = std::make_shared<internal::CoordinatorCore>(strategy, std::move(options),
                                                      slot.next_number, slot.next_generation);
  slot.coordinator = core_;
}

internal::StepRegistry& ClusterCoordinator::registry_to_define(std::string_view step) {
  if (core_->has_started()) {
    fail(ErrorCode::kFailedPrecondition, "define: '", step,
         "' was defined after start(); expected every step to be defined before start(), on every "
         "task");
  }
  return core_->registry();
}

std::optional<int> ClusterCoordinator::serve() { return core_->serve(); }
void ClusterCoordinator::start() { core_->start(); }

RemoteValue ClusterCoordinator::schedule_nest(std::string_view step, Nest arguments) {
  return core_->schedule(step, std::move(arguments));
}

void ClusterCoordinator::join(JoinClosures options) {
  core_->queue().wait(options.deadline);
  if (options.durable) core_->save_checkpoint(options.deadline);
}

bool ClusterCoordinator::done() { return core_->queue().done(); }

std::vector<Nest> ClusterCoordinator::fetch(std::span<const RemoteValue> values) const {
  std::vector<Nest> nests;
  for (const RemoteValue& value : values) nests.push_back(value.get());
  return nests;
}

std::uint64_t ClusterCoordinator::define_resource(
    std::string type, std::string text,
    std::function<std::shared_ptr<void>(int worker, std::uint64_t instance)> make) {
  if (core_->has_started() && core_->has_remote_workers()) {
    fail(ErrorCode::kFailedPrecondition, "per-worker value of ", type,
         ": created after start(); create it before start(), on every task, because a ",
         "function cannot be sent to another process");
  }
  return core_->registry().define_resource(std::move(type), std::move(text), std::move(make));
}

PerWorkerHandle ClusterCoordinator::new_handle(std::uint64_t id, std::string type) {
  return core_->new_handle(id, std::move(type));
}

PerWorkerDataset ClusterCoordinator::create_per_worker_dataset(const Dataset& dataset) {
  return create_per_worker_dataset([dataset](const InputContext&) { return dataset; });
}

template <class Iterator>
PerWorkerDatasetOf<Iterator> ClusterCoordinator::define_dataset(
    std::function<std::shared_ptr<Iterator>(const InputContext&, std::uint64_t epoch)> make) {
  const int num_workers = core_->strategy().num_workers();
  const std::string type = internal::type_name(typeid(Iterator));
  const std::uint64_t id = define_resource(
      type, "over a dataset",
      [make = std::move(make), num_workers](int worker,
                                            std::uint64_t instance) -> std::shared_ptr<void> {
        NoVariables creator;
        const VariableCreatorScope scope(creator);
        const InputContext context{num_workers, worker, 1};
        // Every pass and every worker shuffles in a different order.
        const auto workers = static_cast<std::uint64_t>(num_workers);
        return make(context, instance * workers + static_cast<std::uint64_t>(worker));
      });
  // A weak pointer, so that a dataset that outlives the coordinator does not keep the coordinator's
  // threads alive.
  return PerWorkerDatasetOf<Iterator>([core = std::weak_ptr(core_), id, type] {
    const auto alive = core.lock();
    if (alive == nullptr) {
      fail(ErrorCode::kFailedPrecondition,
           "PerWorkerDataset::iterate: expected a running coordinator, got one that was destroyed");
    }
    return PerWorkerValues<Iterator>(alive->new_handle(id, type));
  });
}

PerWorkerDataset ClusterCoordinator::create_per_worker_dataset(
    std::function<Dataset(const InputContext&)> make) {
  return define_dataset<DatasetIterator>(
      [make = std::move(make)](const InputContext& context, std::uint64_t epoch) {
        return std::make_shared<DatasetIterator>(make(context), epoch);
      });
}

PerWorkerDistributedDataset ClusterCoordinator::create_per_worker_dataset(
    std::function<DistributedDataset(const InputContext&)> make) {
  return define_dataset<DistributedIterator>(
      [make = std::move(make)](const InputContext& context, std::uint64_t) {
        return std::make_shared<DistributedIterator>(make(context));
      });
}

void ClusterCoordinator::save_checkpoint(TimePoint deadline) { core_->save_checkpoint(deadline); }
std::uint64_t ClusterCoordinator::num_scheduled() const { return core_->queue().num_scheduled(); }

}  // namespace tutti
