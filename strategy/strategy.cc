// Implements the shared part of strategies: replica runs, reductions, component updates and input.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/strategy_extended.h"

#include <algorithm>
#include <typeinfo>

#include "core/call_site.h"
#include "core/names.h"
#include "core/thread_random.h"
#include "strategy/reduction/replica_reducer.h"
#include "strategy/replicas/replica_threads.h"
#include "strategy/replicas/step_warnings.h"
#include "strategy/replicas/strategy_mode.h"
#include "strategy/strategy_options.h"
#include "strategy/variables/distributed_variable.h"
#include "strategy/variables/mirrored_variable.h"
#include "strategy/variables/sync_on_read_variable.h"
#include "strategy/xla/xla_steps.h"
#include "tensor/step_hooks.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/core/clock.h"
#include "tutti/core/logging.h"
#include "tutti/core/random.h"
#include "tutti/core/trace.h"
#include "tutti/cross_device_ops/cross_device_ops.h"
#include "tutti/strategy/strategy.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti {

DeviceList::DeviceList(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    for (const Device& device : parse_devices(name)) devices.push_back(device);
  }
}

namespace {

/// Returns the XLA steps; nullptr if the replicas compute on the host or on GPUs.
std::unique_ptr<internal::XlaSteps> make_xla_steps(std::string_view who,
                                                   LocalStrategyOptions& options) {
  const std::vector<Device> devices = internal::consume_xla_devices(who, options);
  return devices.empty() ? nullptr : std::make_unique<internal::XlaSteps>(devices);
}

/// Records the row count of each batch and the first bytes of the first batch, which suffice to
/// detect a different order.
void note_global_batch(internal::ConsistencyCheck& check, const Element& batch, bool is_first) {
  constexpr std::size_t kMostBytes = std::size_t{256}
                                     << 10;  // maximum number of bytes compared per tensor
  using Kind = internal::ConsistencyCheck::Kind;
  check.note_number(Kind::kGlobalBatch, "global batches", static_cast<double>(batch.rows()),
                    " rows");
  if (!is_first) return;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const std::span<const std::byte> bytes = batch[i].bytes();
    check.note(Kind::kFirstBatch, concat("component '", batch.names()[i], "'"),
               bytes.first(std::min(kMostBytes, bytes.size())));
  }
}

/// Returns `placement`, changed so that writes outside steps are compared across workers.
std::shared_ptr<const Placement> checked_placement(const internal::ReplicaServices& services,
                                                   Placement placement) {
  if (services.num_workers() > 1) placement.check = services.team->check();
  return std::make_shared<const Placement>(std::move(placement));
}

}  // namespace

struct StrategyExtended::Impl {
  Impl(Strategy& self, Mutex& ops_mutex, std::string_view strategy_name, LocalStrategyOptions given,
       std::shared_ptr<internal::WorkerTeam> team)
      : name(strategy_name),
        xla(make_xla_steps(name, given)),
        options(std::move(given)),
        ops(internal::build_ops(name, options, internal::replica_devices_of(name, options))),
        services{self,
                 internal::replica_devices_of(name, options),
                 *ops,
                 ops_mutex,
                 options.cross_device_ops.options,
                 std::move(team)},
        mirrored(checked_placement(services, Placement::mirrored(services.replica_devices))),
        work_bytes(services.replica_devices.size(), 0),
        notes(services.replica_devices.size()),
        threads(services.replica_devices, options.execution == ReplicaExecution::kSequential,
                options.timeout) {
    internal::check_weights(name, options, services.num_replicas());
  }

  /// Lock that gives one run exclusive use of the strategy. The constructor waits until no other
  /// user thread runs the strategy; nested runs do not wait.
  class RunClaim {
   public:
    RunClaim(Impl& impl, bool nested) : impl_(impl), nested_(nested) {
      if (nested_) return;
      MutexLock lock(impl_.turn_mutex);
      const auto is_free = [&]() TUTTI_REQUIRES(impl_.turn_mutex) { return !impl_.busy; };
      while (!impl_.turn_condition.wait_for(impl_.turn_mutex, std::chrono::hours(1), is_free)) {
      }
      impl_.busy = true;
    }
    ~RunClaim() {
      if (nested_) return;
      {
        MutexLock lock(impl_.turn_mutex);
        impl_.busy = false;
      }
      impl_.turn_condition.notify_one();
    }
    RunClaim(const RunClaim&) = delete;
    RunClaim& operator=(const RunClaim&) = delete;

   private:
    Impl& impl_;
    const bool nested_;
  };

  using Rendezvous = internal::Rendezvous;

  void run(const std::function<void(ReplicaContext&)>& body) {
    const internal::StrategyMode* mode = internal::current_mode();
    const bool nested = mode && mode->merging;
    const RunClaim claim(*this, nested);
    require_intact();
    const TimePoint begin = Clock::system().now();
    if (services.team) services.team->set_step(step);
    internal::GradientExchange exchange(services, plans, threads.monitor(), step);
    const SourceLocation where = CallSite::current();  // line that called run()
    internal::RunOutcome outcome =
        threads.run([&](int replica, Rendezvous& rendezvous, internal::IdleWork& parked) {
          const CallSite site(where);
          run_replica(replica, rendezvous, parked, exchange, body);
        });
    if (outcome.error) {
      plans.clear();
      if (services.team) end_team(outcome);
      report(std::move(outcome));
    }
    if (nested) return;  // a nested run is part of the outer one
    run_seconds += seconds_between(begin, Clock::system().now());
    warnings.check_step(notes, {name, step, services.first_number(), services.num_replicas()});
    ++step;
    if (std::ranges::any_of(notes, &internal::ReplicaNotes::draws)) ++random_step;
  }
  void run_replica(int replica, Rendezvous& rendezvous, internal::IdleWork& nested,
                   internal::GradientExchange& exchange,
                   const std::function<void(ReplicaContext&)>& body) {
    internal::LocalReplicaContext context(services, rendezvous, nested, replica);
    internal::ReplicaReducer reducer(context, exchange);
    const internal::StrategyModeScope mode({&services.strategy, &context, false});
    const NoDeviceScope same_for_all_replicas;  // hides the caller's scopes from replica 0
    const DeviceScope own_device(context.device());
    const VariableCreatorScope creator(forbidden);
    const ReplicaGroupScope group(&context.group());
    const GradientReducerScope reducing(&reducer);
    const TraceSpan span(
        "step", "step",
        {{"replica", context.replica_id()}, {"step", static_cast<std::int64_t>(step)}});
    const RandomContextScope random(
        {seed(), random_step, static_cast<std::uint32_t>(context.replica_id())});
    const std::uint64_t num_draws = internal::num_random_draws();
    body(context);
    internal::ReplicaNotes& note = notes[static_cast<std::size_t>(replica)];
    note.communication_seconds += context.communication_seconds();
    note.assumed_rows = context.assumed_rows();
    note.batch_rows = context.batch_rows();
    note.non_finite_result = context.non_finite_result();
    note.summed_mean = context.summed_mean();
    note.draws = internal::num_random_draws() != num_draws;
  }
  /// Returns the word for a replica in messages; the replicas of a mesh are positions.
  const char* unit() const { return name == "mesh" ? "position" : "replica"; }
  std::uint64_t seed() const { return restored_seed.value_or(random_seed()); }
  void require_intact() const {
    if (!half_updated) return;
    fail(ErrorCode::kFailedPrecondition, "Strategy::run (", name, "): step ", failure.step,
         " failed while variables were being updated, so some variables have values from that step "
         "and others from the step before it; restore a checkpoint, which calls restore_state()");
  }
  /// Aborts the step on the other workers, so that they do not wait for this one.
  void end_team(const internal::RunOutcome& outcome) {
    const int replica = services.first_replica() + std::max(outcome.replica, 0);
    services.team->abort(Error(ErrorCode::kAborted,
                               concat("worker ", services.team->worker(), ", replica ", replica,
                                      ", step ", step, ": ", internal::message_of(outcome.error))));
  }
  /// Stores the failure and rethrows its exception. The message of a tutti::Error gets the replica
  /// and the step as a prefix.
  [[noreturn]] void report(internal::RunOutcome outcome) {
    if (outcome.replica >= 0) outcome.replica += services.first_number();
    failure = {outcome.replica, step, std::move(outcome.messages)};
    half_updated = half_updated || outcome.failed_in_update;
    const std::string where = outcome.replica < 0
                                  ? concat("step ", step)
                                  : concat(unit(), " ", outcome.replica, ", step ", step);
    try {
      std::rethrow_exception(std::move(outcome.error));
    } catch (const Error& error) {
      if (typeid(error) != typeid(Error)) throw;
      throw error.with_context(where);
    }
  }

  const std::string name;
  const std::unique_ptr<internal::XlaSteps> xla;
  const LocalStrategyOptions options;
  std::unique_ptr<CrossDeviceOps> ops;
  internal::ReplicaServices services;
  const std::shared_ptr<void> life = std::make_shared<char>();  // expires with this object
  const std::shared_ptr<const Placement> mirrored;              // one component on each device
  std::vector<std::size_t> work_bytes;        // per replica: bytes of the variables that it updates
  std::vector<internal::ReplicaNotes> notes;  // per replica, written by that replica's thread
  internal::StepWarnings warnings;
  double run_seconds = 0.0;
  std::optional<std::uint64_t> restored_seed;
  std::uint64_t step = 0;
  /// Part of the random keys. Counts only runs that train or draw random numbers, so evaluation
  /// does not change it.
  std::uint64_t random_step = 0;
  Strategy::Failure failure;
  bool half_updated = false;  // true if a run failed while variables were being updated
  internal::BucketPlans plans;
  Mutex turn_mutex;
  CondVar turn_condition;
  bool busy TUTTI_GUARDED_BY(turn_mutex) = false;
  internal::ForbiddenVariableCreator forbidden;
  internal::ReplicaThreads threads;  // declared last, so that they are joined first
};

StrategyExtended::StrategyExtended(Strategy& strategy, Mutex& ops_mutex, std::string_view name,
                                   LocalStrategyOptions options,
                                   std::shared_ptr<internal::WorkerTeam> team)
    : impl_(
          std::make_unique<Impl>(strategy, ops_mutex, name, std::move(options), std::move(team))) {
  start_trace_from_environment();
}

StrategyExtended::~StrategyExtended() = default;

internal::WorkerTeam* StrategyExtended::team() const { return impl_->services.team.get(); }
std::uint64_t StrategyExtended::num_steps() const { return impl_->step; }
const internal::ReplicaServices& StrategyExtended::services() const { return impl_->services; }

void StrategyExtended::run(const std::function<void(ReplicaContext&)>& body) {
  internal::require_cross_replica(impl_->services.strategy, "Strategy::run");
  if (!impl_->xla) return impl_->run(body);
  impl_->xla->run([&](const internal::XlaSteps::NoteReplica& note) {
    impl_->run(
        [&](ReplicaContext& context) { note(context.replica_id(), [&] { body(context); }); });
  });
}

void StrategyExtended::set_after_updates(std::function<void()> action) {
  impl_->services.after_updates = std::move(action);
}

void StrategyExtended::number_replicas_apart(int first, int total) {
  impl_->services.first_apart = first;
  impl_->services.num_apart = total;
}

bool StrategyExtended::is_on_read(const VariableOptions& options) const {
  const auto aggregation = static_cast<int>(options.aggregation);
  internal::require(
      aggregation >= 0 && aggregation <= static_cast<int>(VariableAggregation::kOnlyFirstReplica),
      "Variable '", options.name, "': no such aggregation: ", aggregation,
      "; expected NONE, SUM, MEAN or ONLY_FIRST_REPLICA");
  switch (options.synchronization) {
    case VariableSynchronization::kAuto:
    case VariableSynchronization::kOnWrite:
      return false;
    case VariableSynchronization::kOnRead:
      return true;
    case VariableSynchronization::kNone:
      fail(ErrorCode::kInvalidArgument, "Variable '", options.name,
           "': synchronization NONE is not supported by '", impl_->name,
           "'; expected AUTO, ON_WRITE or ON_READ");
  }
  fail(ErrorCode::kInvalidArgument, "Variable '", options.name,
       "': no such synchronization: ", static_cast<int>(options.synchronization),
       "; expected AUTO, ON_WRITE or ON_READ");
}

int StrategyExtended::next_work_number(std::size_t num_bytes) {
  const auto least = std::ranges::min_element(impl_->work_bytes);
  *least += num_bytes;
  return static_cast<int>(least - impl_->work_bytes.begin());
}

std::shared_ptr<VariableStorage> StrategyExtended::create_storage(
    const Tensor& initial_value, VariableOptions options,
    std::shared_ptr<const Placement> placement) {
  const internal::ReplicaServices& services = impl_->services;
  const std::vector<Device>& devices = services.replica_devices;
  if (is_on_read(options)) {
    return std::make_shared<internal::SyncOnReadStorage>(
        initial_value, std::move(options), &services.strategy, devices, services.team,
        std::shared_ptr<const internal::ReplicaServices>(impl_->life, &services));
  }
  const bool any_gpu = std::ranges::any_of(
      devices, [](const Device& device) { return device.type == DeviceType::kGpu; });
  if (options.on_host && any_gpu) {
    placement = checked_placement(services, Placement::central(devices, Device{}));
  }
  return std::make_shared<internal::MirroredStorage>(
      initial_value, std::move(options), &services.strategy,
      placement ? std::move(placement) : impl_->mirrored,
      next_work_number(initial_value.num_bytes()));
}

// Functions of Strategy that forward to StrategyExtended.

Strategy::Strategy(std::string_view name, LocalStrategyOptions options,
                   std::shared_ptr<internal::WorkerTeam> team)
    : extended_(std::make_unique<StrategyExtended>(*this, ops_mutex_, name, std::move(options),
                                                   std::move(team))) {
  const internal::ReplicaServices& services = extended_->impl_->services;
  const std::string who =
      services.team ? concat("worker ", worker(), " of ", num_workers(), ", ") : std::string();
  const int num_replicas = services.num_replicas();
  log_info(concat("strategy '", name, "': ", who, services.replica_devices.size(),
                  services.team ? concat(" of ", num_replicas) : std::string(), " ",
                  extended_->impl_->unit(), num_replicas == 1 ? " on " : "s on ",
                  join(worker_devices()), ", reduction ", reduction_name()));
}

Strategy::Strategy() = default;
Strategy::~Strategy() = default;

StrategyExtended& Strategy::extended() const {
  if (extended_) return *extended_;
  fail(ErrorCode::kUnimplemented,
       "Strategy: expected a strategy whose replicas are threads, got one without a "
       "StrategyExtended; use ",
       "the constructor with LocalStrategyOptions, or override the function that was called");
}

internal::WorkerTeam* internal::team_of(const Strategy& strategy) {
  return strategy.extended_ ? strategy.extended_->team() : nullptr;
}

std::string_view Strategy::name() const { return extended().impl_->name; }
int Strategy::num_replicas_in_sync() const { return extended().impl_->services.num_in_sync(); }
std::span<const Device> Strategy::replica_devices() const {
  return extended().impl_->services.replica_devices;
}
int Strategy::num_workers() const {
  return extended_ ? extended_->impl_->services.num_workers() : 1;
}
int Strategy::worker() const {
  const internal::WorkerTeam* const team = internal::team_of(*this);
  return team ? team->worker() : 0;
}
int Strategy::first_replica() const {
  return extended_ ? extended_->impl_->services.first_number() : 0;
}
CrossDeviceOps& Strategy::cross_device_ops() { return *extended().impl_->ops; }
std::string_view Strategy::reduction_name() {
  if (!extended_) return cross_device_ops().name();
  if (extended_->impl_->xla) return "stablehlo.all_reduce";
  // Workers that use parameter servers do not form a team.
  return extended_->impl_->services.num_workers() > 1 ? extended_->team()->algorithm()
                                                      : cross_device_ops().name();
}
std::span<const double> Strategy::replica_weights() const {
  if (!extended_) return {};
  return extended_->impl_->options.replica_weights;
}

Json Strategy::save_state() const {
  const StrategyExtended::Impl& impl = *extended().impl_;
  Json state = Json::object();
  state.set("seed", concat(impl.seed()));  // all 64 bits, which a JSON number cannot hold
  state.set("step", impl.step).set("random_step", impl.random_step);
  return state;
}

void Strategy::restore_state(const Json& state) {
  StrategyExtended::Impl& impl = *extended().impl_;
  impl.restored_seed = std::stoull(state.at("seed").as_string());
  impl.step = static_cast<std::uint64_t>(state.at("step").as_int());
  // Older checkpoints have no random_step: every run counted, so step replaces it.
  const Json* const random_step = state.find("random_step");
  impl.random_step = random_step ? static_cast<std::uint64_t>(random_step->as_int()) : impl.step;
  impl.half_updated = false;
  impl.plans.clear();
}

const Strategy::Failure& Strategy::last_failure() const { return extended().impl_->failure; }

Strategy::RunTimes Strategy::take_run_times() {
  if (!extended_) return {};
  StrategyExtended::Impl& impl = *extended_->impl_;
  RunTimes times{std::exchange(impl.run_seconds, 0.0), 0.0};
  for (auto& note : impl.notes) {
    times.communication += std::exchange(note.communication_seconds, 0.0);
  }
  times.communication /= static_cast<double>(impl.notes.size());
  return times;
}

int Strategy::num_compiled() const {
  return extended_ && extended_->impl_->xla ? extended_->impl_->xla->num_compiled() : 0;
}

const std::string& Strategy::last_program() const {
  static const std::string none;
  return extended_ && extended_->impl_->xla ? extended_->impl_->xla->last_program() : none;
}

void Strategy::request_stop(std::string_view reason) {
  const internal::WorkerTeam* const team = internal::team_of(*this);
  if (ControlClient* const control = team ? team->control() : nullptr) {
    control->request_stop(reason);
  } else {
    is_asked_to_stop_ = true;
  }
}

bool Strategy::stops_after(std::int64_t step) {
  const internal::WorkerTeam* const team = internal::team_of(*this);
  ControlClient* const control = team ? team->control() : nullptr;
  return control ? control->stops_after(static_cast<std::uint64_t>(step))
                 : is_asked_to_stop_.exchange(false);
}

void Strategy::complete_input_plan(InputPlan& plan) {
  if (!internal::team_of(*this)) return;
  const std::shared_ptr<internal::WorkerTeam> team = extended_->impl_->services.team;
  if (team->num_workers() > 1) {
    plan.note_global_batch = [check = team->check()](const Element& batch, bool is_first) {
      note_global_batch(*check, batch, is_first);
    };
  }
  plan.rows_of_workers = [team](std::int64_t rows) {
    std::vector<std::int64_t> all;
    for (const std::string& text : team->gather_texts(concat(rows), "rows of the next step")) {
      all.push_back(std::stoll(text));
    }
    return all;
  };
}

std::vector<Tensor> Strategy::values_of_all_replicas(const PerReplica<Tensor>& local,
                                                     std::string_view who) {
  internal::WorkerTeam* const team = internal::team_of(*this);
  return team ? team->gather_tensors(local.values(), who) : local.values();
}

}  // namespace tutti

// Functions that all strategies share: reductions over replicas, updates of components, input.

namespace tutti {

using internal::require_cross_replica;

std::vector<Device> Strategy::worker_devices() const {
  std::vector<Device> devices;
  for (const Device& device : replica_devices()) {
    if (std::ranges::find(devices, device) == devices.end()) devices.push_back(device);
  }
  return devices;
}

Scope Strategy::scope() { return Scope(*this); }

std::size_t Strategy::num_bodies() const {
  return extended_ ? extended_->impl_->services.replica_devices.size() : replica_devices().size();
}

void Strategy::check_argument_count(std::size_t count) const {
  if (count == replica_devices().size()) return;
  fail(ErrorCode::kInvalidArgument, "Strategy '", name(), "': expected a PerReplica value with ",
       replica_devices().size(), " elements, one per replica, got ", count);
}

void Strategy::note_result(ReplicaContext& context, const Tensor& result) {
  if (!result.defined() || result.num_elements() != 1 || !is_floating(result.dtype())) return;
  if (host_reads_at_once(result)) context.note_result(result.item_double());
}

namespace {

void require_destinations(std::span<const Device> destinations, const char* who) {
  if (!destinations.empty()) return;
  fail(ErrorCode::kInvalidArgument, who, ": no destinations; expected at least one device");
}

Tensor dense_of(const Gradient& value) { return value.dense(); }

PerReplica<Tensor> copies(const Tensor& value, std::span<const Device> destinations) {
  std::vector<Tensor> values;
  for (const Device& device : destinations) values.push_back(value.to(device));
  return PerReplica<Tensor>(std::move(values));
}

}  // namespace

PerReplica<Gradient> Strategy::of_all_replicas(const PerReplica<Tensor>& value,
                                               std::string_view who) {
  return PerReplica<Tensor>(values_of_all_replicas(value, who)).map([](const Tensor& each) {
    return Gradient(each);
  });
}

PerReplica<Tensor> Strategy::reduce_to(ReduceOp op, const PerReplica<Tensor>& value,
                                       std::span<const Device> destinations,
                                       const SourceLocation& where) {
  const CallSite site(where);
  require_cross_replica(*this, "Strategy::reduce_to");
  require_destinations(destinations, "Strategy::reduce_to");
  check_argument_count(value.size());
  const PerReplica<Gradient> gradients = of_all_replicas(value, "reduce_to");
  MutexLock lock(ops_mutex_);
  return copies(cross_device_ops().reduce(op, gradients, destinations.front()).dense(),
                destinations);
}

std::vector<PerReplica<Tensor>> Strategy::batch_reduce_to(
    ReduceOp op,
    std::span<const std::pair<PerReplica<Tensor>, std::vector<Device>>> value_destination_pairs,
    const SourceLocation& where) {
  const CallSite site(where);
  require_cross_replica(*this, "Strategy::batch_reduce_to");
  std::vector<PerReplica<Gradient>> values;
  for (const auto& [value, destinations] : value_destination_pairs) {
    require_destinations(destinations, "Strategy::batch_reduce_to");
    check_argument_count(value.size());
    values.push_back(of_all_replicas(value, "batch_reduce_to"));
  }
  std::vector<PerReplica<Gradient>> reduced;
  {
    MutexLock lock(ops_mutex_);
    reduced = cross_device_ops().batch_all_reduce(op, values);
  }
  std::vector<PerReplica<Tensor>> results;
  for (std::size_t i = 0; i < reduced.size(); ++i) {
    results.push_back(copies(dense_of(reduced[i][0]), value_destination_pairs[i].second));
  }
  return results;
}

PerReplica<Tensor> Strategy::broadcast_to(const Tensor& value,
                                          std::span<const Device> destinations) {
  require_cross_replica(*this, "Strategy::broadcast_to");
  require_destinations(destinations, "Strategy::broadcast_to");
  MutexLock lock(ops_mutex_);
  return cross_device_ops().broadcast(value, destinations);
}

Tensor Strategy::gather(const PerReplica<Tensor>& value, int axis, const SourceLocation& where) {
  const CallSite site(where);
  require_cross_replica(*this, "Strategy::gather");
  check_argument_count(value.size());
  const PerReplica<Tensor> all(values_of_all_replicas(value, "gather"));
  MutexLock lock(ops_mutex_);
  return cross_device_ops().gather(all, axis, parameter_devices().front());
}

Tensor Strategy::gather(const PerReplica<IndexedSlices>&, int) {
  fail(ErrorCode::kUnimplemented,
       "Strategy::gather: gather does not support IndexedSlices; expected "
       "PerReplica<Tensor>; call IndexedSlices::to_dense() in the replicas");
}

void Strategy::update(const Variable& variable,
                      const std::function<void(Variable&, const Tensor&)>& fn,
                      const PerReplica<Tensor>& argument) {
  require_cross_replica(*this, "Strategy::update");
  internal::require(variable_created_in_scope(variable), "Strategy::update: Variable '",
                    variable.name(), "' was not created in the scope of '", name(), "'");
  auto* storage = dynamic_cast<internal::DistributedStorage*>(&variable.storage());
  const int count = storage ? storage->num_components() : 1;
  const int num_replicas = static_cast<int>(replica_devices().size());
  const int size = static_cast<int>(argument.size());
  if (size != count && size != num_replicas) {
    fail(ErrorCode::kInvalidArgument, "Strategy::update: expected an argument with ", count,
         " elements (one per component of '", variable.name(), "') or ", num_replicas,
         " (one per replica), got ", size);
  }
  if (!storage) {
    Variable whole = variable;
    fn(whole, argument[0]);
    return;
  }
  for (int c = 0; c < count; ++c) {
    // If there is one element per replica, selects the element of the first replica that has the
    // component.
    int element = c;
    for (int r = num_replicas - 1; size != count && r >= 0; --r) {
      if (storage->component_of_replica(r) == c) element = r;
    }
    Variable component(
        std::make_shared<internal::ComponentStorage>(variable.shared_storage(), *storage, c));
    const DeviceScope colocated(component.storage().devices().front());
    fn(component, argument[static_cast<std::size_t>(element)]);
  }
}

void Strategy::update(const Variable& variable,
                      const std::function<void(Variable&, const Tensor&)>& fn,
                      const Tensor& argument) {
  update(variable, fn, PerReplica<Tensor>(std::vector<Tensor>(replica_devices().size(), argument)));
}

std::shared_ptr<VariableStorage> Strategy::create_storage_from(
    const Variable::Initializer& initializer, const RandomKey& key, VariableOptions options) {
  const Device device = parameter_devices().front();
  return create_storage(initializer({device, key}).to(device), std::move(options));
}

bool Strategy::variable_created_in_scope(const Variable& variable) const {
  const void* self = this == &default_strategy() ? nullptr : static_cast<const void*>(this);
  return variable.storage().owner() == self;
}

InputPlan Strategy::input_plan(InputCut cut, InputOptions options) {
  const auto devices = replica_devices();
  const auto weights = replica_weights();
  InputPlan plan{.replica_devices = {devices.begin(), devices.end()},
                 .weights = {weights.begin(), weights.end()},
                 .cut = cut,
                 .options = options,
                 .num_replicas_in_sync = num_replicas_in_sync(),
                 .first_replica = first_replica(),
                 .num_workers = num_workers(),
                 .worker = worker()};
  complete_input_plan(plan);
  return plan;
}

DistributedDataset Strategy::distribute_dataset(const Dataset& global, InputOptions options) {
  return make_distributed_dataset(global, input_plan(InputCut::kSplit, options));
}

DistributedDataset Strategy::distribute_datasets_from_function(
    const std::function<Dataset(const InputContext&)>& fn, InputOptions options) {
  const InputContext context{.num_input_pipelines = num_workers(),
                             .input_pipeline_id = worker(),
                             .num_replicas_in_sync = num_replicas_in_sync()};
  return make_distributed_dataset(fn(context), input_plan(InputCut::kWhole, options));
}

namespace {

constexpr const char* kReduce = "Strategy::reduce";

void require_sum_or_mean(ReduceOp op) {
  if (op == ReduceOp::kSum || op == ReduceOp::kMean) return;
  fail(ErrorCode::kInvalidArgument, kReduce, ": expected SUM or MEAN, got ", op,
       "; use ReplicaContext::all_reduce for other operations");
}

/// Returns numerator / count by true division; the result is float32 for integers.
Tensor quotient(const Tensor& numerator, std::int64_t count) {
  const auto divisor = static_cast<double>(count);
  if (is_floating(numerator.dtype())) return divide(numerator, divisor);
  return cast(divide(cast(numerator, DType::kFloat64), divisor), DType::kFloat32);
}

std::int64_t length_of(const Tensor& value, std::span<const int> axes) {
  std::int64_t length = 1;
  for (const int axis : axes) length *= value.shape().dim(axis);
  return length;
}

/// Returns the sum over `axes` of each value, on the value's device. Throws for bool, like
/// reduce_sum().
std::vector<Tensor> sums_over_axes(std::span<const Tensor> values, std::span<const int> axes) {
  std::vector<Tensor> sums;
  for (const Tensor& value : values) {
    for (const int axis : axes) value.shape().normalized_axis(axis, kReduce);
    sums.push_back(reduce_sum(value, {std::vector<int>(axes.begin(), axes.end()), false}));
  }
  return sums;
}

}  // namespace

Tensor Strategy::reduce_values(ReduceOp op, const PerReplica<Tensor>& value) {
  const GradientTape::StopRecording stop;
  const PerReplica<Gradient> gradients = of_all_replicas(value, "reduce");
  const DType dtype = gradients[0].dense().dtype();
  const bool divides = op == ReduceOp::kMean && !is_floating(dtype) && dtype != DType::kBool;
  MutexLock lock(ops_mutex_);
  const Tensor reduced =
      cross_device_ops()
          .reduce(divides ? ReduceOp::kSum : op, gradients, parameter_devices().front())
          .dense();
  return divides ? quotient(reduced, std::ssize(gradients.values())) : reduced;
}

Tensor Strategy::reduce(ReduceOp op, const PerReplica<Tensor>& value, std::optional<int> axis,
                        const SourceLocation& where) {
  if (axis) return reduce(op, value, std::span<const int>(&*axis, 1), where);
  const CallSite site(where);
  internal::require_cross_replica(*this, kReduce);
  require_sum_or_mean(op);
  check_argument_count(value.size());
  return reduce_values(op, value);
}

Tensor Strategy::reduce(ReduceOp op, const PerReplica<Tensor>& value, std::span<const int> axes,
                        const SourceLocation& where) {
  const CallSite site(where);
  internal::require_cross_replica(*this, kReduce);
  require_sum_or_mean(op);
  check_argument_count(value.size());
  if (axes.empty()) return reduce(op, value, std::nullopt, where);
  const GradientTape::StopRecording stop;
  const PerReplica<Tensor> sums(sums_over_axes(value.values(), axes));
  const Tensor sum = reduce_values(ReduceOp::kSum, sums);
  if (op == ReduceOp::kSum) return sum;
  std::vector<Tensor> lengths;
  for (const Tensor& each : value) {
    lengths.push_back(Tensor::from<std::int64_t>({}, {length_of(each, axes)}));
  }
  std::int64_t count = 0;
  for (const Tensor& length :
       values_of_all_replicas(PerReplica<Tensor>(std::move(lengths)), "lengths in reduce")) {
    count += length.item_int();
  }
  return quotient(sum, count);
}

Tensor Strategy::reduce(std::string_view op, const PerReplica<Tensor>& value,
                        std::optional<int> axis, const SourceLocation& where) {
  return reduce(parse_reduce_op(op), value, axis, where);
}

Tensor Strategy::reduce(ReduceOp op, const Tensor& value, std::optional<int> axis) {
  internal::require_cross_replica(*this, kReduce);
  require_sum_or_mean(op);
  if (op == ReduceOp::kSum && num_replicas_in_sync() > 1) {
    fail(ErrorCode::kInvalidArgument, kReduce, ": SUM over ", num_replicas_in_sync(),
         " replicas: expected a PerReplica, got a value that is not distributed; use MEAN, or the "
         "result of run()");
  }
  if (!axis) return value;
  const GradientTape::StopRecording stop;
  const std::span<const int> axes(&*axis, 1);
  const Tensor sum = sums_over_axes(std::span(&value, 1), axes).front();
  return op == ReduceOp::kSum ? sum : quotient(sum, length_of(value, axes));
}

}  // namespace tutti
