// Threads of a pipeline, one per stage; every batch passes through all of them.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/parallel/pipeline.h"

#include <algorithm>
#include <utility>

#include "core/names.h"
#include "model/parallel/pipeline_stage.h"
#include "tutti/core/error.h"
#include "tutti/core/executor.h"
#include "tutti/core/random.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/ops/elementwise.h"

namespace tutti {

// The two schedules of a pipeline.

std::string_view to_string(PipelineOrder order) {
  return order == PipelineOrder::kAllForwardFirst ? "all forward first"
                                                  : "one forward, one backward";
}

std::vector<PipelineTask> pipeline_schedule(PipelineOrder order, int stage, int num_stages,
                                            int num_micro_batches) {
  internal::require(stage >= 0 && stage < num_stages && num_micro_batches >= 1,
                    "pipeline_schedule: expected a stage from 0 to ", num_stages - 1,
                    " and at least one micro-batch, got stage ", stage, " and ", num_micro_batches,
                    " micro-batches");
  // Maximum number of micro-batches whose forward pass is done but whose backward pass is not.
  const int ahead = order == PipelineOrder::kAllForwardFirst
                        ? num_micro_batches
                        : std::min(num_stages - stage, num_micro_batches);
  std::vector<PipelineTask> tasks;
  for (int forward = 0, backward = 0; backward < num_micro_batches;) {
    if (forward < num_micro_batches && forward - backward < ahead) {
      tasks.push_back({true, forward++});
    } else {
      tasks.push_back({false, backward++});
    }
  }
  return tasks;
}

using internal::PipelineStage;

struct Pipeline::Impl {
  /// State of one batch. Shared with the threads, because a blocked thread may outlive the call to
  /// gradients().
  struct Batch {
    Batch(const Impl& impl, internal::MicroBatches micro_batches);
    const internal::MicroBatches parts;
    internal::StageExchange exchange;
    std::vector<std::unique_ptr<PipelineStage>> stages;
    const std::uint64_t step;
  };

  Impl(StagedSequential staged, LossFunction loss_function, PipelineOptions given);
  ~Impl();
  /// Starts a thread for each stage. If it throws, the destructor stops the threads already
  /// started.
  void start();
  void serve(std::size_t stage);
  void run_stage(Batch& batch, std::size_t stage) const;
  std::shared_ptr<Batch> next_batch(std::uint64_t& last);
  PipelineResult result_of(const Batch& batch) const;

  const StagedSequential model;
  const LossFunction loss;
  const PipelineOptions options;
  std::vector<std::vector<PipelineTask>> tasks;  // by stage
  std::uint64_t num_steps = 0;

  Mutex mutex;
  CondVar condition;
  std::shared_ptr<Batch> batch TUTTI_GUARDED_BY(mutex);
  std::uint64_t batch_number TUTTI_GUARDED_BY(mutex) = 0;
  bool stopping TUTTI_GUARDED_BY(mutex) = false;
  bool is_in_use TUTTI_GUARDED_BY(mutex) = false;  // true while gradients() runs
  std::vector<std::unique_ptr<Thread>> threads;    // the last member, so that it is destroyed first
};

namespace {

std::vector<Device> devices_of(const StagedSequential& model) {
  std::vector<Device> devices;
  for (std::size_t s = 0; s < model.num_stages(); ++s) devices.push_back(model.device(s));
  return devices;
}

}  // namespace

Pipeline::Impl::Batch::Batch(const Impl& impl, internal::MicroBatches micro_batches)
    : parts(std::move(micro_batches)),
      exchange(devices_of(impl.model), parts.features.size(), impl.options.timeout),
      step(impl.num_steps) {
  for (std::size_t s = 0; s < impl.model.num_stages(); ++s) {
    stages.push_back(std::make_unique<PipelineStage>(impl.model, impl.loss, parts, exchange, s));
  }
}

Pipeline::Impl::Impl(StagedSequential staged, LossFunction loss_function, PipelineOptions given)
    : model(std::move(staged)), loss(std::move(loss_function)), options(given) {
  if (!loss || options.micro_batches < 1 || options.timeout.count() <= 0) {
    fail(ErrorCode::kInvalidArgument,
         "Pipeline: expected a loss function, micro_batches >= 1 and a ", "positive timeout, got ",
         loss ? "a" : "no", " loss function, ", options.micro_batches,
         " micro-batches and a timeout of ", options.timeout.count(), " ms");
  }
  const auto num_stages = static_cast<int>(model.num_stages());
  for (int s = 0; s < num_stages; ++s) {
    tasks.push_back(pipeline_schedule(options.order, s, num_stages, options.micro_batches));
  }
}

void Pipeline::Impl::start() {
  for (std::size_t s = 0; s < model.num_stages(); ++s) {
    threads.push_back(Executor::system().start(concat("stage-", s), [this, s] { serve(s); }));
  }
}

Pipeline::Impl::~Impl() {
  {
    MutexLock lock(mutex);
    stopping = true;
  }
  condition.notify_all();
  for (auto& thread : threads) thread->join();
}

/// Waits for a batch whose number is greater than `last`; returns nullptr when stopping.
std::shared_ptr<Pipeline::Impl::Batch> Pipeline::Impl::next_batch(std::uint64_t& last) {
  MutexLock lock(mutex);
  const auto is_there = [&]() TUTTI_REQUIRES(mutex) { return stopping || batch_number > last; };
  while (!condition.wait_for(mutex, std::chrono::hours(1), is_there)) {
  }
  if (stopping) return nullptr;
  last = batch_number;
  return batch;
}

void Pipeline::Impl::serve(std::size_t stage) {
  std::uint64_t last = 0;
  while (const std::shared_ptr<Batch> next = next_batch(last)) run_stage(*next, stage);
}

void Pipeline::Impl::run_stage(Batch& current, std::size_t stage) const {
  std::exception_ptr error;
  try {
    const RandomContextScope random({random_seed(), current.step, 0});
    current.stages[stage]->run(tasks[stage]);
  } catch (...) {
    error = std::current_exception();
  }
  current.exchange.end(std::move(error));
}

PipelineResult Pipeline::Impl::result_of(const Batch& done) const {
  const NoDeviceScope where_things_are;
  PipelineResult result;
  result.loss = done.stages.back()->loss();
  for (const auto& stage : done.stages) {
    if (stage->regularization().defined()) {
      result.loss = result.loss + stage->regularization().to(result.loss.device());
    }
    result.transfers.insert(result.transfers.end(), stage->transfers().begin(),
                            stage->transfers().end());
  }
  for (const Variable& variable : model.trainable_variables()) {
    for (const auto& stage : done.stages) {
      const auto found = std::ranges::find(stage->variables(), variable);
      if (found == stage->variables().end()) continue;
      result.gradients.push_back(
          stage->gradient(static_cast<std::size_t>(found - stage->variables().begin())));
    }
  }
  return result;
}

Pipeline::Pipeline(StagedSequential model, LossFunction loss, PipelineOptions options)
    : impl_(std::make_unique<Impl>(std::move(model), std::move(loss), options)) {
  impl_->start();
}
Pipeline::~Pipeline() = default;

PipelineResult Pipeline::gradients(const Tensor& features, const Tensor& labels) {
  internal::MicroBatches parts =
      internal::cut_into_micro_batches(features, labels, impl_->options.micro_batches);
  std::shared_ptr<Impl::Batch> batch;
  {
    MutexLock lock(impl_->mutex);
    if (std::exchange(impl_->is_in_use, true)) {
      fail(ErrorCode::kFailedPrecondition,
           "Pipeline::gradients: expected calls from one thread at a time, got one during another "
           "thread's call; a Pipeline uses all its devices in each call, so call it outside of "
           "Strategy::run(), or use a Pipeline for each replica");
    }
  }
  const std::shared_ptr<void> using_it(nullptr, [this](void*) {
    MutexLock lock(impl_->mutex);
    impl_->is_in_use = false;
  });
  {
    MutexLock lock(impl_->mutex);
    if (impl_->batch && !impl_->batch->exchange.has_ended()) {
      fail(ErrorCode::kFailedPrecondition,
           "Pipeline::gradients: a stage is still working on an earlier, failed batch; expected "
           "all stages to have finished; create a new Pipeline");
    }
    impl_->batch = batch = std::make_shared<Impl::Batch>(*impl_, std::move(parts));
    ++impl_->batch_number;
  }
  impl_->condition.notify_all();
  (void)batch->exchange.wait_for_end();
  if (const std::exception_ptr error = batch->exchange.error()) std::rethrow_exception(error);
  ++impl_->num_steps;
  PipelineResult result = impl_->result_of(*batch);
  MutexLock lock(impl_->mutex);
  impl_->batch = nullptr;  // releases its memory before the next batch
  return result;
}

const StagedSequential& Pipeline::model() const { return impl_->model; }
std::uint64_t Pipeline::num_steps() const { return impl_->num_steps; }
void Pipeline::set_num_steps(std::uint64_t steps) { impl_->num_steps = steps; }

}  // namespace tutti
