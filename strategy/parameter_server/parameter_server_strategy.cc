// Implements ParameterServerStrategy: placement of shards, and the beginning and end of steps.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/parameter_server_strategy.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "strategy/multi_worker/worker_team.h"
#include "strategy/parameter_server/client/first_values.h"
#include "strategy/parameter_server/coordinator/coordinated_strategy.h"
#include "strategy/parameter_server/coordinator/server_group.h"
#include "strategy/parameter_server/coordinator/worker_service.h"
#include "strategy/parameter_server/job.h"
#include "strategy/parameter_server/server/server_store.h"
#include "strategy/parameter_server/shard_placement.h"
#include "strategy/parameter_server/sharded_storage.h"
#include "strategy/replicas/strategy_mode.h"
#include "strategy/strategy_options.h"
#include "strategy/variables/distributed_variable.h"
#include "tutti/autograd/value_generator.h"
#include "tutti/core/error.h"
#include "tutti/core/logging.h"
#include "tutti/core/sync.h"

namespace tutti {
namespace {

constexpr const char* kName = "parameter_server";

/// Throws for replicas on GPUs, because transfers that overlap GPU steps are not implemented.
void require_cpus(std::span<const Device> devices) {
  for (const Device& device : devices) {
    if (device.type == DeviceType::kCpu) continue;
    fail(ErrorCode::kUnimplemented, kName, ": expected CPUs, got replicas on ", device,
         "; use --devices cpu:0, or multi_worker_mirrored for GPUs");
  }
}

using Servers = std::vector<std::shared_ptr<internal::VariableService>>;

/// Returns `count` servers in this process, which exist while they are referenced.
Servers embedded_servers(int count) {
  Servers servers;
  for (int i = 0; i < count; ++i) {
    servers.push_back(std::make_shared<internal::VariableStore>(concat("ps ", i)));
  }
  return servers;
}

using InitialValue = std::variant<ValueGenerator, Tensor>;

std::size_t bytes_of_rows(const Shape& shape, DType dtype, std::int64_t num_rows) {
  const std::int64_t elements = shape.rank() == 0 ? 1 : shape.with_dim(0, num_rows).num_elements();
  return static_cast<std::size_t>(elements) * size_of(dtype);
}

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  fail(ErrorCode::kInvalidArgument, "ParameterServerStrategy: ", parts...);
}

/// Returns the pace of one worker; nullopt for kSync. Throws kInvalidArgument for invalid numbers.
std::optional<internal::WorkerPace> pace_of(const ParameterServerOptions& options, int worker,
                                            int num_workers) {
  if (options.update_mode == UpdateMode::kSync) return std::nullopt;
  if (num_workers < 1 || worker < 0 || worker >= num_workers) {
    refuse("expected a worker index below ", num_workers, " (the number of workers), got ", worker);
  }
  internal::WorkerPace pace;
  pace.mode = options.update_mode;
  pace.worker = worker;
  pace.num_workers = num_workers;
  if (pace.mode != UpdateMode::kSyncReplicas) return pace;
  pace.patience = options.local.timeout;
  const int total = options.total_num_replicas == 0 ? num_workers : options.total_num_replicas;
  if (total != num_workers) {
    refuse("total_num_replicas: expected the number of workers, ", num_workers, ", or 0, got ",
           total);
  }
  pace.num_to_aggregate =
      options.replicas_to_aggregate == 0 ? total : options.replicas_to_aggregate;
  if (pace.num_to_aggregate < 1 || pace.num_to_aggregate > total) {
    refuse("replicas_to_aggregate: expected 1 .. ", total, " (one gradient per worker), ", "got ",
           options.replicas_to_aggregate);
  }
  return pace;
}

/// Returns "worker 1 of 3 trains independently (sync_replicas, 2 gradients form a step)".
std::string describe(const internal::WorkerPace& pace) {
  std::string mode(to_string(pace.mode));
  if (pace.mode == UpdateMode::kSyncReplicas) {
    mode += concat(", ", pace.num_to_aggregate, " gradients form a step");
  }
  return concat("worker ", pace.worker, " of ", pace.num_workers, " trains independently (", mode,
                ")");
}

/// Returns the minimum number of workers needed for a step.
int workers_needed(const ParameterServerOptions& options, int num_workers) {
  if (options.update_mode == UpdateMode::kSync) return num_workers;
  if (options.update_mode != UpdateMode::kSyncReplicas || num_workers == 0) return 0;
  return pace_of(options, 0, num_workers)->num_to_aggregate;
}

/// Returns a description of a variable, which must be equal on all workers.
std::string describe(const std::string& name, const std::vector<internal::RemoteShard>& shards,
                     const InitialValue& initial) {
  const std::string cut = concat(" in ", shards.size(), " shards from ps ", shards.front().server);
  if (const auto* value = std::get_if<Tensor>(&initial)) {
    return internal::describe_variable(name, *value) + cut;
  }
  const auto& generator = std::get<ValueGenerator>(initial);
  return concat("'", name, "' ", generator.dtype, " ", generator.shape, ", values of generator ",
                static_cast<int>(generator.kind), " (", generator.a, ", ", generator.b, ") from ",
                generator.key.seed, ".", generator.key.a, cut);
}

/// Scope of a step. Within it, a variable is fetched again only after a change, or after another
/// step has begun in this process.
class ServerStepScope {
 public:
  explicit ServerStepScope(internal::ParameterServers& servers, bool is_stream = false)
      : servers_(servers), is_stream_(is_stream) {
    servers_.begin_step();
  }
  ~ServerStepScope() {
    if (is_stream_) servers_.end_stream();
    servers_.end_step();
  }
  ServerStepScope(const ServerStepScope&) = delete;
  ServerStepScope& operator=(const ServerStepScope&) = delete;

 private:
  internal::ParameterServers& servers_;
  const bool is_stream_;
};

}  // namespace

/// Arguments assembled by the public constructors.
struct ParameterServerStrategy::Parts {
  LocalStrategyOptions local = {};
  std::shared_ptr<internal::WorkerTeam> team = {};
  std::vector<std::shared_ptr<internal::VariableService>> servers = {};
  std::unique_ptr<internal::ParameterServerJob> job = {};
  std::optional<internal::WorkerPace> pace = {};
  bool has_own_servers = false;  // true if the servers are in this process

  static Parts in_process(const ParameterServerOptions& options) {
    Parts parts{options.local, nullptr, embedded_servers(options.num_servers)};
    parts.has_own_servers = true;
    parts.pace = pace_of(options, 0, 1);
    return parts;
  }

  static Parts of_job(const ClusterResolver& resolver, const ParameterServerOptions& options) {
    if (resolver.cluster_spec().empty()) return in_process(options);
    const int num_workers = resolver.cluster_spec().count("worker");
    auto job = std::make_unique<internal::ParameterServerJob>(
        resolver, options, options.coordinated ? 0 : workers_needed(options, num_workers));
    Parts parts{options.local, nullptr, job->servers()};
    if (options.coordinated && job->role() == internal::ParameterServerRole::kServer) {
      for (int i = 0; i < job->cluster().count("ps"); ++i) {
        parts.servers.push_back(std::make_shared<internal::FirstValues>(concat("ps ", i)));
      }
    } else if (!options.coordinated && job->role() != internal::ParameterServerRole::kWorker) {
      // This task runs the same program, so it creates variables, but it never trains them.
      parts.servers = embedded_servers(options.num_servers);
      parts.local.replicas = 0;
    } else if (!options.coordinated && options.update_mode != UpdateMode::kSync) {
      parts.pace = pace_of(options, resolver.task()->index, num_workers);
    } else if (!options.coordinated) {
      auto setup = internal::join_team(kName, job->workers(), options.local, {});
      parts.local = std::move(setup.options);
      parts.team = std::move(setup.team);
    }
    parts.job = std::move(job);
    return parts;
  }
};

/// State of the strategy, and its interface for a coordinator. The coordinator's workers are the
/// tasks of the job; without a job, they are threads of this process.
struct ParameterServerStrategy::Impl final : CoordinatedStrategy {
  Impl(Parts parts, const ParameterServerOptions& options, Placement central)
      : partitioner(options.variable_partitioner),
        picker(options.placement, static_cast<int>(parts.servers.size())),
        job(std::move(parts.job)),
        team(std::move(parts.team)),
        mode(options.update_mode),
        pace(parts.pace),
        servers(pace ? std::make_shared<internal::ParameterServers>(std::move(parts.servers),
                                                                    options.timeout, *pace)
                     : std::make_shared<internal::ParameterServers>(std::move(parts.servers),
                                                                    options.timeout, team)),
        placement(std::make_shared<const Placement>(std::move(central))),
        num_closure_workers(job ? job->num_workers() : options.num_workers),
        has_coordinator(options.coordinated) {
    if (parts.has_own_servers || (is_of_coordinator() && job->is_chief())) {
      group = std::make_shared<internal::ServerGroup>(servers, options.cluster.join_timeout);
      if (job) job->coordinate(group);
    }
    if (!is_of_coordinator() || job->is_chief()) return;
    servers->set_guard([&job = *job] { job.require_closure_or_chief("a variable was changed"); });
  }

  bool is_of_coordinator() const { return job && job->is_coordinated(); }
  bool is_idle_task() const {
    return job && !is_of_coordinator() && job->role() != internal::ParameterServerRole::kWorker;
  }
  std::vector<internal::RemoteShard> place(const std::string& name, const Shape& shape,
                                           DType dtype) {
    const std::int64_t count =
        colocated_with ? 1 : internal::num_shards_of(partitioner, name, shape, dtype);
    const std::int64_t num_rows = shape.rank() == 0 ? 1 : shape.dim(0);
    const std::string unique = servers->unique_name(name);
    std::vector<internal::RemoteShard> shards;
    for (const auto& rows : internal::cut_rows(num_rows, count)) {
      const int server =
          colocated_with ? *colocated_with : picker.next(bytes_of_rows(shape, dtype, rows.count));
      const int number = static_cast<int>(shards.size());
      shards.emplace_back(server,
                          internal::ShardSpec{unique, dtype, shape, number, static_cast<int>(count),
                                              rows.first, rows.count});
    }
    return shards;
  }

  int num_workers() const override { return num_closure_workers; }
  std::string worker_name(int worker) const override {
    return job ? job->worker_name(worker) : CoordinatedStrategy::worker_name(worker);
  }
  /// Runs `body` as a closure: fetches a variable again only if its cached value may be outdated,
  /// makes changes on behalf of the closure, and waits until the servers have confirmed them.
  void run_closure(const std::function<void()>& body) override {
    const ServerStepScope step(*servers, true);
    internal::ForbiddenVariableCreator forbidden;
    const VariableCreatorScope creator(forbidden);
    body();
    servers->settle();
  }
  /// Returns true if this thread runs the coordinator's program, as opposed to a step on a worker.
  bool is_coordinating() {
    if (ClosureContext::current() != nullptr) return false;
    if (job) return job->is_coordinated() && job->is_chief();
    CoordinatorSlot& slot = coordinator_slot();
    MutexLock lock(slot.mutex);
    return !slot.coordinator.expired();
  }
  /// Logs a warning once. tf's documentation says of such a call: "executed locally on the
  /// coordinator. This is inefficient but may be valid".
  void warn_of_work_on_chief(std::string_view call) {
    if (warned_of_chief || !is_coordinating() || warned_of_chief.exchange(true)) return;
    log_warning(concat(kName, ": ", call,
                       "() outside a closure: the coordinator's chief works alone, ",
                       "without its workers; expected a step scheduled on a worker; use ",
                       "ClusterCoordinator::define() and schedule(); logged once"));
  }
  std::unique_ptr<internal::WorkerLink> connect_worker(int worker,
                                                       internal::StepRegistry& registry) override {
    return job ? job->connect_worker(worker, registry) : nullptr;
  }
  bool must_serve() const override { return job && !job->is_chief(); }
  int serve(internal::StepRegistry& registry) override { return job->serve(*this, registry); }
  std::shared_ptr<void> when_over(std::function<void(const std::string& why)> told) override {
    return job ? job->watch().when_over(std::move(told)) : nullptr;
  }
  internal::ServerGroup* server_group() override { return group.get(); }

  const Partitioner partitioner;
  internal::ServerPicker picker;
  const std::unique_ptr<internal::ParameterServerJob> job;  // null: all tasks are in this process
  const std::shared_ptr<internal::WorkerTeam> team;
  const UpdateMode mode;
  const std::optional<internal::WorkerPace> pace;  // nullopt: workers perform each step together
  const std::shared_ptr<internal::ParameterServers> servers;
  const std::shared_ptr<const Placement> placement;
  /// Set only in the coordinating process, if there is one.
  std::shared_ptr<internal::ServerGroup> group;
  const int num_closure_workers;
  const bool has_coordinator;
  std::optional<int> colocated_with;  // server of a ColocationScope
  std::atomic<bool> warned_of_chief{false};
};

ParameterServerStrategy::ParameterServerStrategy(ParameterServerOptions options)
    : ParameterServerStrategy(Parts::in_process(options), options) {}

ParameterServerStrategy::ParameterServerStrategy(const ClusterResolver& resolver,
                                                 ParameterServerOptions options)
    : ParameterServerStrategy(Parts::of_job(resolver, options), options) {}

ParameterServerStrategy::ParameterServerStrategy(
    std::unique_ptr<Communicator> communicator,
    std::vector<std::shared_ptr<internal::VariableService>> servers, ParameterServerOptions options)
    : ParameterServerStrategy(
          [&] {
            auto setup = internal::join_team(kName, std::move(communicator), options.local);
            return Parts{std::move(setup.options), std::move(setup.team), std::move(servers)};
          }(),
          options) {}

ParameterServerStrategy::ParameterServerStrategy(
    int worker, int num_workers, std::vector<std::shared_ptr<internal::VariableService>> servers,
    ParameterServerOptions options)
    : ParameterServerStrategy(
          [&] {
            Parts parts{options.local, nullptr, std::move(servers)};
            parts.pace = pace_of(options, worker, num_workers);
            if (parts.pace) return parts;
            fail(ErrorCode::kInvalidArgument, kName,
                 ": expected update_mode kAsync or kSyncReplicas for a worker that trains "
                 "independently, got kSync");
          }(),
          options) {}

ParameterServerStrategy::ParameterServerStrategy(Parts parts, const ParameterServerOptions& options)
    : Strategy(kName, parts.local, parts.team) {
  require_cpus(replica_devices());
  const auto devices = replica_devices();
  const int first = parts.team ? parts.team->first_replica() : 0;
  Placement central =
      Placement::central({devices.begin(), devices.end()}, Device{}, first, num_replicas_in_sync());
  impl_ = std::make_unique<Impl>(std::move(parts), options, std::move(central));
  if (const auto& pace = impl_->pace) {
    const auto own = static_cast<int>(devices.size());
    extended().number_replicas_apart(pace->worker * own, pace->num_workers * own);
    log_info(concat("strategy '", kName, "': ", describe(*pace)));
  } else {
    extended().set_after_updates(
        [servers = impl_->servers] { servers->meet("updates of a step"); });
  }
  log_info(concat("strategy '", kName, "': ", num_parameter_servers(),
                  num_parameter_servers() == 1 ? " server" : " servers",
                  !impl_->job ? " in this process" : "", ", variables placed ", options.placement));
}

/// Reports that this worker has finished. The destructor of `servers` would report it too late,
/// because variables may outlive the strategy.
ParameterServerStrategy::~ParameterServerStrategy() { impl_->servers->leave(); }

bool ParameterServerStrategy::is_chief() const {
  if (impl_->is_of_coordinator()) return impl_->job->is_chief();
  return !impl_->is_idle_task() && Strategy::is_chief();
}

std::optional<int> ParameterServerStrategy::serve() {
  if (!impl_->is_idle_task()) return std::nullopt;
  return impl_->job->serve();
}

int ParameterServerStrategy::num_workers() const {
  return impl_->pace ? impl_->pace->num_workers : Strategy::num_workers();
}
int ParameterServerStrategy::worker() const {
  return impl_->pace ? impl_->pace->worker : Strategy::worker();
}
UpdateMode ParameterServerStrategy::update_mode() const { return impl_->mode; }

int ParameterServerStrategy::num_parameter_servers() const { return impl_->servers->count(); }

ParameterServerStrategy::operator CoordinatedStrategy&() {
  if (impl_->mode != UpdateMode::kSync && impl_->mode != UpdateMode::kAsync) {
    fail(ErrorCode::kInvalidArgument, kName, ": a coordinator's steps are asynchronous, but ",
         "update_mode is ", to_string(impl_->mode), "; expected async or the default");
  }
  if (!impl_->job || impl_->job->is_coordinated()) return *impl_;
  fail(ErrorCode::kFailedPrecondition,
       "ClusterCoordinator: the workers of this ParameterServerStrategy run their own steps; set ",
       "the option coordinated = true on every task");
}

void ParameterServerStrategy::complete_input_plan(InputPlan& plan) {
  impl_->warn_of_work_on_chief("distribute_dataset");
  if (!impl_->pace) return Strategy::complete_input_plan(plan);
  plan.num_workers = 1;  // trains independently, so it reads the data as if it were alone
  plan.worker = 0;
}

std::vector<Tensor> ParameterServerStrategy::values_of_all_replicas(const PerReplica<Tensor>& local,
                                                                    std::string_view who) {
  impl_->warn_of_work_on_chief(who);
  return Strategy::values_of_all_replicas(local, who);
}

std::vector<ShardPlace> ParameterServerStrategy::shards_of(const Variable& variable) const {
  const auto* storage = dynamic_cast<const internal::ShardedStorage*>(&variable.storage());
  if (!storage || storage->owner() != static_cast<const Strategy*>(this)) {
    fail(ErrorCode::kInvalidArgument, "ParameterServerStrategy::shards_of: variable '",
         variable.name(),
         "' is not on the servers of this strategy; expected one created in its scope");
  }
  std::vector<ShardPlace> places;
  for (const internal::RemoteShard& shard : storage->shards()) {
    places.push_back({concat("/job:ps/replica:0/task:", shard.server, "/device:CPU:0"),
                      shard.spec.first_row, shard.spec.num_rows});
  }
  return places;
}

std::shared_ptr<VariableStorage> ParameterServerStrategy::create_storage(
    const Tensor& initial_value, VariableOptions options) {
  const auto make = [initial_value](const InitializerContext&) { return initial_value; };
  return create_storage_from(make, RandomKey{}, std::move(options));
}

std::shared_ptr<VariableStorage> ParameterServerStrategy::create_storage_from(
    const Variable::Initializer& initializer, const RandomKey& key, VariableOptions options) {
  const bool is_on_read = extended().is_on_read(options);
  if (is_on_read && !impl_->has_coordinator) {
    return extended().create_storage(initializer({Device{}, key}), std::move(options));
  }
  if (is_on_read) {
    // Closures run in several processes, and the chief reads the result, so each write goes to the
    // servers.
    options.synchronization = VariableSynchronization::kOnWrite;
    options.trainable = options.trainable.value_or(false);
  }
  const auto generator = generator_of(initializer, key);
  const InitialValue initial = generator ? InitialValue(*generator)
                                         : InitialValue(initializer({Device{}, key}).to(Device{}));
  const Shape shape = generator ? generator->shape : std::get<Tensor>(initial).shape();
  const DType dtype = generator ? generator->dtype : std::get<Tensor>(initial).dtype();
  auto shards = impl_->place(options.name, shape, dtype);
  if (impl_->team) {
    internal::require_same_variable(kName, *impl_->team, describe(options.name, shards, initial));
  }
  impl_->servers->change_together(
      [&] { internal::create_shards(*impl_->servers, shards, initial); },
      concat("'", options.name, "'"));
  const int work_number =
      extended().next_work_number(bytes_of_rows(shape, dtype, shape.rank() ? shape.dim(0) : 1));
  return std::make_shared<internal::ShardedStorage>(
      shape, dtype, std::move(options), static_cast<const Strategy*>(this), impl_->placement,
      work_number, impl_->servers, std::move(shards));
}

void ParameterServerStrategy::run_on_replicas(const std::function<void(ReplicaContext&)>& body) {
  if (impl_->is_idle_task()) {
    fail(ErrorCode::kFailedPrecondition, kName, ": run() was called on ", impl_->job->task(),
         ", which does not train; call `if (const auto code = strategy.serve()) return *code;` ",
         "before run()");
  }
  if (impl_->is_of_coordinator()) impl_->job->require_closure_or_chief("run() was called");
  impl_->warn_of_work_on_chief("run");
  const ServerStepScope step(*impl_->servers);
  // Replicas change variables on behalf of the closure that runs them.
  const ClosureContext* const closure = ClosureContext::current();
  extended().run([&](ReplicaContext& context) {
    std::optional<ClosureScope> scope;
    if (closure) scope.emplace(*closure, static_cast<std::uint32_t>(context.replica_id()));
    body(context);
  });
  if (!impl_->team) impl_->servers->meet("end of a step");
}

ParameterServerStrategy::ColocationScope::ColocationScope(ParameterServerStrategy& strategy,
                                                          const Variable& variable, int shard)
    : strategy_(strategy), previous_(strategy.impl_->colocated_with) {
  const auto places = strategy.shards_of(variable);
  if (shard < 0 || shard >= static_cast<int>(places.size())) {
    fail(ErrorCode::kInvalidArgument, "ColocationScope: no shard ", shard, " of variable '",
         variable.name(), "'; expected 0 .. ", places.size() - 1);
  }
  const auto& storage = static_cast<const internal::ShardedStorage&>(variable.storage());
  strategy.impl_->colocated_with = storage.shards()[static_cast<std::size_t>(shard)].server;
}

ParameterServerStrategy::ColocationScope::~ColocationScope() {
  strategy_.impl_->colocated_with = previous_;
}

}  // namespace tutti
