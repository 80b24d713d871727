// A thread that does operations in order; values of other tasks are asked for before each.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/session/task_session.h"

#include <utility>

#include "tutti/autograd/gradient_tape.h"
#include "tutti/cross_device_ops/canonical_tree.h"
#include "tutti/strategy/parameter_server/coordinator/nest_conversion.h"
#include "tutti/tensor/device_scope.h"

namespace tutti::internal {
namespace {

/// Sessions have none.
class NoResources final : public WorkerResources {
 public:
  std::shared_ptr<void> find(const PerWorkerHandle& handle) override {
    fail(ErrorCode::kInvalidArgument, "a per-worker value of ", handle.type,
         ": expected a value that travels; try ClusterCoordinator::schedule()");
  }
};

const Tensor& tensor_of(const Nest& nest, const std::string& who) {
  if (nest.tensor() == nullptr) fail_conversion(who, "a Tensor", nest);
  return *nest.tensor();
}

ShardSpec spec_of(const std::string& variable, const Tensor& initial) {
  const std::int64_t rows = initial.rank() == 0 ? 1 : initial.shape().dim(0);
  return {variable, initial.dtype(), initial.shape(), 0, 1, 0, rows};
}

ShardId id_of(const std::string& variable) { return shard_id(variable, 0); }

Error ended_error(const Task& task) {
  return Error(ErrorCode::kCancelled, concat(task, ": the session has ended"));
}

}  // namespace

TaskSession::TaskSession(const TaskParts& parts, std::uint64_t session, Duration timeout)
    : parts_(parts),
      session_(session),
      timeout_(timeout),
      thread_(Executor::system().start("session", [this] { run(); })) {}

TaskSession::~TaskSession() {
  end();
  thread_->join();
  parts_.store.end_client(session_);
}

void TaskSession::end() {
  std::map<ValueAddress, Value> values;  // destroyed without the lock
  {
    const MutexLock lock(mutex_);
    if (std::exchange(stops_, true)) return;
    waiting_.clear();
    values.swap(values_);
    changed_.notify_all();
  }
  for (const auto& [address, value] : values) {
    for (const Told& told : value.asked) told({{}, ended_error(parts_.task)});
  }
}

void TaskSession::set(std::uint64_t op, OpOutcome outcome) {
  std::vector<Told> asked;
  {
    const MutexLock lock(mutex_);
    if (stops_) return;
    Value& value = values_[{parts_.task, op}];
    value.outcome = outcome;
    asked.swap(value.asked);
  }
  for (const Told& told : asked) told(outcome);
}

void TaskSession::when_there(std::uint64_t op, Told told) {
  OpOutcome outcome{{}, ended_error(parts_.task)};
  {
    const MutexLock lock(mutex_);
    if (!stops_) {
      Value& value = values_[{parts_.task, op}];
      if (!value.outcome) return value.asked.push_back(std::move(told));
      outcome = *value.outcome;
    }
  }
  told(outcome);
}

void TaskSession::post(TaskRequest request, std::shared_ptr<RpcCall> call) {
  const std::uint64_t op = request.op;
  {
    const MutexLock lock(mutex_);
    if (!stops_ && op > last_op_) {
      last_op_ = op;
      waiting_.push_back(std::move(request));
      changed_.notify_all();
    }
  }
  when_there(op, [call = std::move(call)](const OpOutcome& outcome) {
    if (outcome.error) return call->fail(*outcome.error);
    call->reply({});
  });
}

void TaskSession::fetch(const TaskRequest& request, std::shared_ptr<RpcCall> call) {
  const ValueAddress& from = request.arguments.at(0).from;
  when_there(from.op, [call = std::move(call), path = from.path](const OpOutcome& outcome) {
    try {
      if (outcome.error) return call->fail(*outcome.error);
      call->reply(encode_nest(part_of(outcome.value, path)));
    } catch (const Error& error) {
      call->fail(error);
    }
  });
}

void TaskSession::release(const TaskRequest& request) {
  std::vector<Value> released;  // destroyed without the lock
  const MutexLock lock(mutex_);
  for (const auto& [from, value] : request.arguments) {
    const auto is_meant = [&from = from](const auto& each) {
      return each->first.task == from.task && each->first.op == from.op;
    };
    auto each = values_.lower_bound({from.task, from.op, {}});
    while (each != values_.end() && is_meant(each)) {
      const auto next = std::next(each);
      // What is not there yet somebody waits for.
      if (each->second.asked.empty()) released.push_back(std::move(values_.extract(each).mapped()));
      each = next;
    }
  }
}

Nest TaskSession::transfers() const {
  const MutexLock lock(mutex_);
  std::vector<std::tuple<std::string, int, std::uint64_t, std::uint64_t>> all;
  for (const auto& [task, counted] : counted_) {
    all.emplace_back(task.type, task.index, counted.values, counted.bytes);
  }
  return to_nest(all);
}

std::size_t TaskSession::num_held() const {
  const MutexLock lock(mutex_);
  return values_.size();
}

void TaskSession::run() {
  for (;;) {
    TaskRequest request;
    {
      const MutexLock lock(mutex_);
      changed_.wait_until(mutex_, TimePoint::max(),
                          [this]() TUTTI_REQUIRES(mutex_) { return stops_ || !waiting_.empty(); });
      if (stops_) break;
      request = std::move(waiting_.front());
      waiting_.pop_front();
    }
    set(request.op, outcome_of(request));
  }
  has_ended_.store(true);
}

std::string TaskSession::describe(const TaskRequest& request) const {
  using Kind = TaskRequestKind;
  if (request.kind == Kind::kPut) return concat(parts_.task, ": a constant");
  if (request.kind == Kind::kRun) return concat(parts_.task, ": step '", request.name, "'");
  return concat(parts_.task, ": variable '", request.name, "'");
}

OpOutcome TaskSession::outcome_of(const TaskRequest& request) {
  OpOutcome outcome;
  try {
    outcome.value = done(request);
  } catch (const Error& error) {
    outcome.error = error.with_context(describe(request));
  } catch (const std::exception& error) {
    outcome.error = Error(ErrorCode::kInternal, concat(describe(request), ": ", error.what()));
  } catch (...) {
    outcome.error =
        Error(ErrorCode::kInternal, concat(describe(request), ": an exception of an unknown type"));
  }
  return outcome;
}

Nest TaskSession::done(const TaskRequest& request) {
  std::vector<Nest> values = values_of(request);
  switch (request.kind) {
    case TaskRequestKind::kPut:
      return values.at(0);
    case TaskRequestKind::kRun:
      return run_step(request, std::move(values));
    case TaskRequestKind::kCreateVariable: {
      const Tensor initial = tensor_of(values.at(0), "initial value").to(Device{});
      (void)apply(CreateShard{spec_of(request.name, initial), initial});
      return {};
    }
    case TaskRequestKind::kReadVariable:
      return Nest(*apply(ReadShard{id_of(request.name)}).value);
    case TaskRequestKind::kAssignVariable: {
      const auto op = static_cast<AssignOp>(
          integer_of(request.details, "assign", "a kind of assignment", 0, 2));
      (void)apply(AssignShard{id_of(request.name), op, tensor_of(values.at(0), "assign")});
      return {};
    }
    case TaskRequestKind::kUpdateVariable:
      update_variable(request, values);
      return {};
    default:
      fail(ErrorCode::kDataLoss, "a request of kind ", static_cast<int>(request.kind),
           " is no operation");
  }
}

/// Those of other tasks are all asked for before the first is waited for.
std::vector<Nest> TaskSession::values_of(const TaskRequest& request) {
  for (const TaskArgument& each : request.arguments) {
    if (each.from.op != 0 && each.from.task != parts_.task) ask_for(each.from);
  }
  const TimePoint deadline = deadline_after(Clock::system().now(), timeout_);
  std::vector<Nest> values;
  for (const TaskArgument& each : request.arguments) {
    values.push_back(each.from.op == 0 ? each.value : value_at(each.from, deadline));
  }
  return values;
}

void TaskSession::ask_for(const ValueAddress& address) {
  {
    const MutexLock lock(mutex_);
    if (values_.contains(address)) return;
  }
  TaskRequest fetch{TaskRequestKind::kFetch, session_};
  fetch.arguments.push_back({address, {}});
  std::shared_ptr<RpcReply> reply = parts_.peer(address.task)->start(encode(fetch));
  const MutexLock lock(mutex_);
  values_[address].reply = std::move(reply);
}

Nest TaskSession::value_at(const ValueAddress& address, TimePoint deadline) {
  const bool is_own = address.task == parts_.task;
  Value value;
  {
    const MutexLock lock(mutex_);
    const auto found = values_.find(is_own ? ValueAddress{address.task, address.op} : address);
    if (found != values_.end()) value = {found->second.outcome, {}, found->second.reply};
  }
  if (!value.outcome && !value.reply) {  // operations before this one are done
    fail(ErrorCode::kCancelled, "value ", address.op, " of ", address.task,
         " was released, or never made");
  }
  if (!value.outcome) value.outcome = moved(address, *value.reply, deadline);
  if (value.outcome->error) throw *value.outcome->error;
  return is_own ? part_of(value.outcome->value, address.path) : value.outcome->value;
}

OpOutcome TaskSession::moved(const ValueAddress& address, RpcReply& reply, TimePoint deadline) {
  OpOutcome outcome;
  try {
    outcome.value = decode_nest(reply.wait(deadline));
  } catch (const Error& error) {
    outcome.error = error;
  }
  const MutexLock lock(mutex_);
  values_[address] = {outcome};
  if (outcome.error) return outcome;
  Counted& counted = counted_[address.task];
  ++counted.values;
  counted.bytes += bytes_of(outcome.value);
  return outcome;
}

Nest TaskSession::run_step(const TaskRequest& request, std::vector<Nest> arguments) {
  const StepDefinition& step = parts_.steps.find(request.name);
  std::optional<DeviceScope> device;
  if (!request.device.empty()) device.emplace(request.device);
  NoResources resources;
  return step.run(Nest(std::move(arguments)), resources);
}

/// The sum of the replicas' gradients along the canonical tree, as every strategy makes it.
void TaskSession::update_variable(const TaskRequest& request, const std::vector<Nest>& gradients) {
  const auto [rule, slots, learning_rate, iteration] =
      from_nest<UpdateDetails>(request.details, "update of a variable");
  std::vector<Tensor> tensors;
  for (const Nest& each : gradients) tensors.push_back(tensor_of(each, "gradient").to(Device{}));
  UpdateShard update;
  update.shard = id_of(request.name);
  for (const std::string& slot : slots) update.slots.push_back(id_of(slot));
  update.rule = rule;
  update.scalars.learning_rate = learning_rate;
  update.scalars.iteration = iteration;
  update.gradient = reduce_tensors_along_tree(ReduceOp::kSum, tensors, Device{});
  (void)apply(std::move(update));
}

OperationAnswer TaskSession::apply(Operation operation) {
  OperationBatch batch;
  batch.stream = {UpdateStream::Kind::kClient, session_, 0};
  batch.first_ordinal = next_change_;
  const bool changes = changes_values(operation);
  batch.operations.push_back(std::move(operation));
  const TimePoint deadline = deadline_after(Clock::system().now(), timeout_);
  OperationAnswer answer = parts_.store.start(std::move(batch))->wait(deadline).front();
  next_change_ += changes ? 1 : 0;
  return answer;
}

}  // namespace tutti::internal
