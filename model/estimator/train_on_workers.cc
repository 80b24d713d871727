// Estimator as the client of a cluster: workers run its steps, with variables on parameter servers.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <deque>
#include <utility>

#include "core/names.h"
#include "model/estimator/estimator_graph.h"
#include "tutti/strategy/parameter_server/coordinator/cluster_coordinator.h"
#include "tutti/strategy/parameter_server/parameter_server_strategy.h"

namespace tutti {
namespace {

constexpr const char* kStep = "estimator_train";
constexpr std::size_t kStepsPerWorker = 2;  // number of steps in flight

Batch batch_of(const Dataset& data) {
  auto batch = DatasetIterator(data, 0).try_next();
  internal::require(
      batch, "Estimator::serve: expected data with at least one batch, got none from input_fn");
  return *batch;
}

}  // namespace

/// State of each task: variables on the servers, the registered step, and the workers' data.
struct Estimator::Workers {
  Workers(const Estimator& estimator, ParameterServerStrategy& servers, const InputFn& input_fn)
      : Workers(estimator, servers, input_fn, input_fn(InputContext{1, 0, 1})) {}
  Workers(const Estimator& estimator, ParameterServerStrategy& servers, const InputFn& input_fn,
          const Dataset& own_data)
      : strategy(estimator.config_.train_distribute),
        cardinality(own_data.cardinality()),
        graph(estimator.make_graph(servers, batch_of(own_data), EstimatorMode::kTrain)),
        coordinator(servers),
        data(coordinator.create_per_worker_dataset([&servers, input_fn](const InputContext& own) {
          return servers.distribute_datasets_from_function(
              [&](const InputContext&) { return input_fn(own); });
        })) {
    coordinator.define(kStep, [this](DistributedIterator& batches) { return step(batches); });
  }

  /// Runs one step on a worker. Returns the loss, or an empty vector at the end of the worker's
  /// data.
  std::vector<float> step(DistributedIterator& batches) const {
    const auto batch = batches.try_next();
    if (!batch) return {};
    const auto losses =
        strategy->run([this](const Batch& rows) { return graph.train(rows); }, *batch);
    return {strategy->reduce(ReduceOp::kSum, losses).item()};
  }

  const std::shared_ptr<Strategy> strategy;  // outlives the coordinator
  const std::optional<std::int64_t> cardinality;
  Graph graph;
  ClusterCoordinator coordinator;
  PerWorkerDistributedDataset data;
  bool has_started = false;
};

std::optional<int> Estimator::serve(const InputFn& input_fn) {
  auto* const servers = dynamic_cast<ParameterServerStrategy*>(config_.train_distribute.get());
  if (!servers) {
    fail(ErrorCode::kInvalidArgument,
         "Estimator::serve: expected a ParameterServerStrategy with "
         "ParameterServerOptions::coordinated as train_distribute, got '",
         config_.train_distribute->name(), "'; call train()");
  }
  if (workers_) {
    fail(ErrorCode::kFailedPrecondition, "Estimator::serve: expected one call, got a second one");
  }
  workers_ = std::make_shared<Workers>(*this, *servers, input_fn);
  return workers_->coordinator.serve();
}

Estimator& Estimator::train_on_workers(EstimatorTrainOptions options) {
  Run::check(options);
  if (!workers_) {
    fail(ErrorCode::kFailedPrecondition,
         "Estimator::train_on_workers: expected serve() to be called first, on all tasks");
  }
  Workers& workers = *workers_;
  Run::require_end(options, workers.cardinality);
  if (!std::exchange(workers.has_started, true)) workers.coordinator.start();
  Run run(*this, workers.graph, std::move(options));
  using Losses = std::vector<float>;
  std::deque<RemoteValue> under_way;
  run.num_done = [&] {
    workers.coordinator.join();
    return run.context.global_step + std::ranges::count_if(under_way, [](const RemoteValue& each) {
             return !each.fetch<Losses>().empty();
           });
  };
  bool has_data = true;
  const auto take_first = [&] {
    const Losses losses = under_way.front().fetch<Losses>();
    under_way.pop_front();
    has_data = has_data && !losses.empty();
    if (!losses.empty()) run.step(losses.front());
  };
  const auto most = kStepsPerWorker * static_cast<std::size_t>(workers.strategy->num_workers());
  const auto iterator = workers.data.iterate();
  for (auto n = run.context.global_step; run.should_continue() && has_data && n < run.last; ++n) {
    under_way.push_back(workers.coordinator.schedule(kStep, iterator));
    if (under_way.size() == most) take_first();
  }
  while (!under_way.empty()) take_first();
  run.end();
  return *this;
}

}  // namespace tutti
