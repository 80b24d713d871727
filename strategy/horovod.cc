// Implements Horovod's functions over a team of workers with one replica each.
// SPDX-License-Identifier: Apache-2.0
//
// A rank that has called join() does not know which calls the other ranks make next. Before each
// call, all ranks therefore exchange the names of their calls (agree()). After a rank has joined,
// the lowest active rank also describes its tensors, for which the joined ranks contribute zeros.
#include "tutti/strategy/horovod.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>

#include "core/call_site.h"
#include "core/names.h"
#include "core/process_probe.h"
#include "strategy/multi_worker/worker_team.h"
#include "tutti/cluster/resolver_registry.h"
#include "tutti/core/error.h"
#include "tutti/cross_device_ops/gradient_ops.h"
#include "tutti/optimizer/gradient_reducer.h"

namespace tutti::hvd {
namespace {

constexpr std::string_view kAgreement = "hvd";
constexpr std::string_view kJoin = "join";
constexpr std::string_view kGradients = "gradients";
constexpr std::string_view kAllReduce = "allreduce ";  // prefix; the operation follows

std::string call_of(ReduceOp op) { return concat(kAllReduce, op); }

bool takes_zeros(std::string_view call) {
  return call == kGradients || call == call_of(ReduceOp::kSum) || call == call_of(ReduceOp::kMean);
}

struct TensorSpec {
  std::string name;
  DType dtype;
  Shape shape;
};

Json to_json(const TensorSpec& spec) {
  return Json::Array{spec.name, to_string(spec.dtype),
                     Json::array_of(spec.shape.dims(), [](std::int64_t dim) { return Json(dim); })};
}

TensorSpec spec_of(const Json& json) {
  std::vector<std::int64_t> dims;
  for (const Json& dim : json.as_array().at(2).as_array()) dims.push_back(dim.as_int());
  return {json.as_array().at(0).as_string(), parse_dtype(json.as_array().at(1).as_string()),
          Shape(dims)};
}

using Describe = std::function<std::vector<TensorSpec>()>;

/// This process's rank in its job, with the strategy that connects it to the other ranks.
class Job {
 public:
  explicit Job(const MultiWorkerOptions& options)
      : strategy_(*resolver_from_environment(), options) {
    std::vector<int> all(static_cast<std::size_t>(size()));
    std::iota(all.begin(), all.end(), 0);
    values_ = team().make_group(all, "hvd values");
    const auto machines = team().gather_texts(internal::this_process().machine, "hvd machines");
    const std::string& own = machines[static_cast<std::size_t>(rank())];
    local_rank_ = static_cast<int>(std::count(machines.begin(), machines.begin() + rank(), own));
    local_size_ = static_cast<int>(std::ranges::count(machines, own));
  }

  int rank() const { return strategy_.worker(); }
  int size() const { return strategy_.num_workers(); }
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  Communicator& values() { return *values_; }
  MultiWorkerMirroredStrategy& strategy() { return strategy_; }

  /// Exchanges the names of the ranks' calls. `describe` returns the specs of this call's tensors;
  /// it is required for calls to which joined ranks contribute zeros.
  void agree(std::string_view call, const Describe& describe = {}) {
    const std::optional<int> active = exchange_calls(call);
    if (std::ranges::find(joined_, true) == joined_.end()) return;
    if (!describe || !takes_zeros(call)) {
      fail(ErrorCode::kUnimplemented, "hvd: ", call, " called on rank ", rank(),
           " while other ranks wait in join(); expected a gradient reduction, or a SUM or MEAN "
           "allreduce; make other calls after join() has returned on all ranks");
    }
    Json specs = Json::array();
    for (const TensorSpec& spec : describe()) specs.push_back(to_json(spec));
    (void)team().broadcast_text(specs.dump(), *active, kAgreement);
  }

  int join() {
    std::map<std::string, std::vector<Variable>> zeros;  // keyed by tensor description
    for (;;) {
      const std::vector<bool> before = std::exchange(joined_, {});
      const std::optional<int> active = exchange_calls(kJoin);
      if (!active) {
        joined_.clear();
        int last = size() - 1;
        while (last > 0 && !before.empty() && before[static_cast<std::size_t>(last)]) --last;
        return last;
      }
      if (takes_zeros(call_))
        contribute_zeros(team().broadcast_text("", *active, kAgreement), zeros);
    }
  }

 private:
  internal::WorkerTeam& team() { return *internal::team_of(strategy_); }

  /// Exchanges all ranks' calls, sets joined_ and call_, and returns the lowest active rank.
  std::optional<int> exchange_calls(std::string_view own) {
    const std::vector<std::string> calls = team().gather_texts(own, kAgreement);
    std::optional<int> active;
    joined_.clear();
    for (int r = 0; r < size(); ++r) {
      const std::string& call = calls[static_cast<std::size_t>(r)];
      joined_.push_back(call == kJoin);
      if (call == kJoin) continue;
      if (!active) call_ = call;
      if (call != call_) {
        fail(ErrorCode::kInvalidArgument, "hvd: rank ", *active, " calls ", call_, " and rank ", r,
             " calls ", call, "; expected the same calls in the same order on all ranks");
      }
      if (!active) active = r;
    }
    return active;
  }

  void contribute_zeros(const std::string& text,
                        std::map<std::string, std::vector<Variable>>& known) {
    std::vector<TensorSpec> specs;
    const Json described = Json::parse(text);
    for (const Json& spec : described.as_array()) specs.push_back(spec_of(spec));
    if (call_ != kGradients) {
      const TensorSpec& spec = specs.at(0);
      const ReduceOp op = parse_reduce_op(call_.substr(kAllReduce.size()));
      (void)all_reduce(*values_, op, Tensor::zeros(spec.shape, spec.dtype, Device{}),
                       {.shape = &spec.shape}, CallSite::current());
      return;
    }
    std::vector<Variable>& variables = known[text];
    for (std::size_t i = variables.size(); i < specs.size(); ++i) {
      const Device device = strategy_.replica_devices().front();
      variables.emplace_back(make_local_storage(
          Tensor::zeros(specs[i].shape, specs[i].dtype, device), device, {.name = specs[i].name}));
    }
    strategy_.run([&] {
      GradientReducer& sums = *GradientReducer::current();
      sums.begin(variables);
      (void)sums.finish();
      sums.updates_done();
    });
  }

  MultiWorkerMirroredStrategy strategy_;
  std::unique_ptr<Communicator> values_;
  int local_rank_ = 0;
  int local_size_ = 1;
  std::vector<bool> joined_;  // true for ranks that had joined at the last exchange
  std::string call_;          // call made by the ranks that have not joined
};

/// Sums gradients over all ranks and passes their sums or means to this rank's optimizer or tape.
class AveragingReducer final : public GradientReducer {
 public:
  AveragingReducer(Job& job, ReduceOp op)
      : job_(job), op_(op), sums_(*GradientReducer::current()) {}
  void note_optimizer(const std::string& name, double learning_rate,
                      const std::string& settings) override {
    sums_.note_optimizer(name, learning_rate, settings);
  }
  void begin(std::span<const Variable> variables) override {
    const auto specs = [&] {
      std::vector<TensorSpec> all;
      for (const Variable& each : variables)
        all.push_back({each.name(), each.dtype(), each.shape()});
      return all;
    };
    if (!variables.empty()) job_.agree(kGradients, specs);
    sums_.begin(variables);
  }
  void ready(std::size_t index, const Gradient& gradient) override { sums_.ready(index, gradient); }
  std::vector<Gradient> finish() override {
    std::vector<Gradient> gradients = sums_.finish();
    if (op_ == ReduceOp::kSum) return gradients;
    for (Gradient& each : gradients) {
      if (!each.is_none()) each = divide_by(each, job_.size());
    }
    return gradients;
  }
  bool skips_update() const override { return sums_.skips_update(); }
  void updates_done() override { sums_.updates_done(); }

 private:
  Job& job_;
  const ReduceOp op_;
  GradientReducer& sums_;
};

std::unique_ptr<Job>& current_job() {
  static auto* const job = new std::unique_ptr<Job>;  // shutdown() destroys the job
  return *job;
}

Job& job_for(std::string_view who) {
  if (current_job()) return *current_job();
  fail(ErrorCode::kFailedPrecondition, "hvd::", who,
       ": this process has no rank yet; call hvd::init() first");
}

void check(const MultiWorkerOptions& options) {
  const std::size_t devices = options.local.devices.devices.size();
  internal::require(
      devices <= 1 && options.local.replicas <= 1,
      "hvd::init: a rank is one replica; expected one device, got ",
      std::max<std::size_t>(devices, static_cast<std::size_t>(options.local.replicas)),
      "; try one process per device");
  if (options.digest_steps == 0) return;
  fail(ErrorCode::kInvalidArgument,
       "hvd::init: expected digest_steps 0, because variables may differ between ranks, got ",
       options.digest_steps, "; use MultiWorkerMirroredStrategy to compare variables");
}

ReduceOp checked(std::string_view who, ReduceOp op) {
  if (op == ReduceOp::kMean || op == ReduceOp::kSum) return op;
  fail(ErrorCode::kInvalidArgument, "hvd::", who,
       ": gradients can only be averaged or summed; expected ", "MEAN or SUM, got ", op);
}

/// Runs `body` with a reducer that combines this rank's gradients with those of the other ranks.
template <class Body>
void with_all_ranks(std::string_view who, ReduceOp op, const SourceLocation& where, Body&& body) {
  const CallSite site(where);
  Job& job = job_for(who);
  job.strategy().run([&] {
    AveragingReducer reducer(job, op);
    const GradientReducerScope scope(&reducer);
    body(reducer);
  });
}

}  // namespace

void init(MultiWorkerOptions options) {
  if (current_job()) return;
  check(options);
  if (options.local.devices.devices.empty()) options.local.devices = std::vector<Device>{Device{}};
  current_job() = std::make_unique<Job>(options);
  // Registered after connecting, so that shutdown() runs before the static objects that the
  // connection uses are destroyed.
  static const bool at_exit [[maybe_unused]] = std::atexit(shutdown) == 0;
}

void shutdown() { current_job().reset(); }
bool is_initialized() { return current_job() != nullptr; }

int rank() { return job_for("rank").rank(); }
int size() { return job_for("size").size(); }
int local_rank() { return job_for("local_rank").local_rank(); }
int local_size() { return job_for("local_size").local_size(); }

Tensor allreduce(const Tensor& value, ReduceOp op, SourceLocation where) {
  const CallSite site(where);
  Job& job = job_for("allreduce");
  job.agree(call_of(op), [&] {
    return std::vector<TensorSpec>{{"", value.dtype(), value.shape()}};
  });
  return all_reduce(job.values(), op, value, {}, where);
}

Tensor allgather(const Tensor& value, SourceLocation where) {
  const CallSite site(where);
  Job& job = job_for("allgather");
  job.agree("allgather");
  return all_gather(job.values(), value, {}, where);
}

Tensor broadcast(const Tensor& value, int root_rank, SourceLocation where) {
  const CallSite site(where);
  Job& job = job_for("broadcast");
  job.agree("broadcast");
  return tutti::broadcast(job.values(), value, root_rank, {}, where);
}

void broadcast_variables(std::span<const Variable> variables, int root_rank, SourceLocation where) {
  const CallSite site(where);
  Job& job = job_for("broadcast_variables");
  job.agree(concat("broadcast_variables of ", variables.size(), " variables"));
  for (Variable each : variables) {
    const CallOptions options{.name = each.name()};
    each.assign(tutti::broadcast(job.values(), each.value(), root_rank, options, where));
  }
}

int join(SourceLocation where) {
  const CallSite site(where);
  return job_for("join").join();
}

DistributedGradientTape::DistributedGradientTape(GradientTape& tape, ReduceOp op)
    : tape_(tape), op_(checked("DistributedGradientTape", op)) {}

std::vector<Gradient> DistributedGradientTape::gradient(const Tensor& target,
                                                        std::span<const Variable> sources,
                                                        const SourceLocation& where) {
  std::vector<Gradient> gradients;
  with_all_ranks("DistributedGradientTape", op_, where, [&](GradientReducer& reducer) {
    reducer.begin(sources);
    (void)tape_.gradient(target, sources, [&](std::size_t index, const Gradient& gradient) {
      reducer.ready(index, gradient);
    });
    gradients = reducer.finish();
    reducer.updates_done();
  });
  return gradients;
}

DistributedOptimizer::DistributedOptimizer(Optimizer& optimizer, ReduceOp op)
    : optimizer_(optimizer), op_(checked("DistributedOptimizer", op)) {}

void DistributedOptimizer::minimize(GradientTape& tape, const Tensor& loss,
                                    const SourceLocation& where) {
  with_all_ranks("DistributedOptimizer", op_, where,
                 [&](GradientReducer&) { optimizer_.minimize(tape, loss, where); });
}

void DistributedOptimizer::apply_gradients(std::span<const Gradient> gradients,
                                           const SourceLocation& where) {
  with_all_ranks("DistributedOptimizer", op_, where,
                 [&](GradientReducer&) { optimizer_.apply_gradients(gradients, {}, where); });
}

}  // namespace tutti::hvd
