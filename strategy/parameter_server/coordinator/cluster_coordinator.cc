// The handle on a coordinator, results of closures, and the per-worker datasets.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/coordinator/cluster_coordinator.h"

#include "strategy/parameter_server/coordinator/coordinator_core.h"
#include "tutti/autograd/variable.h"

namespace tutti {
namespace {

/// While a dataset is made.
class NoVariables final : public VariableCreator {
 public:
  std::shared_ptr<VariableStorage> create(const Variable::Initializer&, const RandomKey&,
                                          VariableOptions options) override {
    fail(ErrorCode::kInvalidArgument, "create_per_worker_dataset: its function made the variable '",
         options.name, "'; expected none; try to make variables in the strategy's scope");
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
         "fetch: the closure has not ended at the deadline; try a later one");
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
       "DatasetIterator::next: the dataset of this worker has ended; try repeat(), or try_next()");
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
       "DistributedIterator::next: the dataset of this worker has ended; try repeat(), or "
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
         "' comes after start(); expected all steps before it, on every task");
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
         ": made after start(); expected it before, on every task: a worker in another process ",
         "cannot be sent a function");
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
        // Another pass, and another worker, shuffles in another order.
        const auto workers = static_cast<std::uint64_t>(num_workers);
        return make(context, instance * workers + static_cast<std::uint64_t>(worker));
      });
  // Weakly: a dataset that somebody keeps does not keep the coordinator's threads.
  return PerWorkerDatasetOf<Iterator>([core = std::weak_ptr(core_), id, type] {
    const auto alive = core.lock();
    if (alive == nullptr) {
      fail(ErrorCode::kFailedPrecondition,
           "PerWorkerDataset::iterate: its coordinator is gone; expected it to live");
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

std::vector<Nest> ClusterCoordinator::run_nest_on_each(std::string_view step, Nest arguments) {
  return core_->run_on_each(step, std::move(arguments));
}

void ClusterCoordinator::save_checkpoint(TimePoint deadline) { core_->save_checkpoint(deadline); }
std::uint64_t ClusterCoordinator::num_scheduled() const { return core_->queue().num_scheduled(); }
std::string ClusterCoordinator::describe() const { return core_->describe(); }

}  // namespace tutti
