// Implements TaskSession. A run requests values from other tasks before its first operation.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/session/task_session.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "tutti/strategy/parameter_server/coordinator/nest_conversion.h"

namespace tutti::internal {
namespace {

/// Maximum number of concurrent runs. Every task starts its oldest runs first, so that no run waits
/// for one that has not started on another task.
constexpr std::size_t kMostThreads = 64;

Error no_value(const Task& task) {
  return Error(ErrorCode::kCancelled,
               concat(task, ": the value was released, or its run failed or did not compute it"));
}

Error ended_error(const Task& task) {
  return Error(ErrorCode::kCancelled, concat(task, ": the session has ended"));
}

}  // namespace

/// Execution of one run on its thread: the run's values by number, and values requested from other
/// tasks.
class TaskSession::Execution {
 public:
  Execution(TaskSession& session, const Job& job)
      : session_(session), job_(job), run_(job.request.message.run()) {}

  void run() {
    const TaskProgram& program = job_.program->message;
    request_values(program);
    for (int i = 0; i < program.operations_size(); ++i) {
      const ProgramOperation& operation = program.operations(i);
      try {
        execute(operation);
      } catch (const Error& error) {
        throw error.with_context(concat(session_.parts_.task, ": ", operation.where()));
      } catch (const std::exception& error) {
        fail(ErrorCode::kInternal, session_.parts_.task, ": ", operation.where(), ": ",
             error.what());
      }
      for (const ValueNumber number : job_.program->last_uses[static_cast<std::size_t>(i)]) {
        values_.erase(number);
      }
    }
  }

 private:
  void request_values(const TaskProgram& program) {
    for (const auto& each : program.received()) {
      const Task task{each.job(), each.index()};
      request(each.value(), value_address(task, run_.number(), each.value()));
    }
    auto tensor = job_.request.tensors.begin();
    for (int i = 0; i < program.arguments_size(); ++i) {
      if (run_.arguments(i).has_tensor()) {
        values_.emplace(program.arguments(i), *tensor++);
      } else {
        request(program.arguments(i), run_.arguments(i).address());
      }
    }
  }

  void request(ValueNumber number, const ValueAddress& from) {
    const Task task = task_of(from);
    if (task == session_.parts_.task) {
      values_.emplace(number, session_.own_value(from));
      return;
    }
    TaskRequest fetch;
    fetch.message.set_session(session_.number_);
    *fetch.message.mutable_fetch() = from;
    requested_.emplace(number, std::pair(task, session_.parts_.peer(task)->start(encode(fetch))));
  }

  void execute(const ProgramOperation& operation) {
    std::vector<Tensor> inputs;
    for (const ValueNumber number : operation.inputs()) inputs.push_back(value_of(number));
    const std::vector<Tensor> outputs =
        session_.parts_.executor.execute(operation, std::move(inputs));
    if (std::ssize(outputs) != operation.outputs_size()) {
      fail(ErrorCode::kInvalidArgument, "expected an operation with ", outputs.size(),
           " outputs, got ", operation.outputs_size());
    }
    for (int i = 0; i < operation.outputs_size(); ++i) {
      const Tensor& output = outputs[static_cast<std::size_t>(i)];
      const ValueNumber number = operation.outputs(i);
      const auto kept = job_.program->kept.find(number);
      if (kept != job_.program->kept.end()) {
        session_.keep(run_.number(), number, output, kept->second);
      }
      values_.emplace(number, output);
    }
  }

  const Tensor& value_of(ValueNumber number) {
    const auto requested = requested_.find(number);
    if (requested == requested_.end()) return values_.at(number);
    const auto& [task, reply] = requested->second;
    const TimePoint deadline = deadline_after(Clock::system().now(), session_.timeout_);
    const auto value = from_nest<Tensor>(decode_nest(reply->wait(deadline)), "a value of a task");
    {
      const MutexLock lock(session_.mutex_);
      Counted& counted = session_.counted_[task];
      ++counted.values;
      counted.bytes += value.num_bytes();
    }
    requested_.erase(requested);
    return values_.emplace(number, value).first->second;
  }

  TaskSession& session_;
  const Job& job_;
  const v1::SessionRequest::Run& run_;
  std::unordered_map<ValueNumber, Tensor> values_;
  std::unordered_map<ValueNumber, std::pair<Task, std::shared_ptr<RpcReply>>> requested_;
};

TaskSession::TaskSession(TaskParts& parts, std::uint64_t number, Duration timeout)
    : parts_(parts), number_(number), timeout_(timeout) {}

TaskSession::~TaskSession() {
  end();
  std::vector<std::unique_ptr<Thread>> threads;
  {
    const MutexLock lock(mutex_);
    threads.swap(threads_);
  }
  for (const auto& thread : threads) thread->join();
}

void TaskSession::end() {
  std::map<std::uint64_t, Run> runs;  // destroyed without the lock
  std::deque<Job> waiting;
  {
    const MutexLock lock(mutex_);
    if (std::exchange(stops_, true)) return;
    waiting.swap(waiting_);
    runs.swap(runs_);
    changed_.notify_all();
  }
  for (const auto& [number, run] : runs) {
    for (const auto& [value, held] : run.values) {
      for (const auto& fetch : held.fetches) fetch->fail(ended_error(parts_.task));
    }
  }
  for (const Job& job : waiting) job.call->fail(ended_error(parts_.task));
}

bool TaskSession::has_ended() const {
  const MutexLock lock(mutex_);
  return stops_ && num_working_ == 0;
}

void TaskSession::run(TaskRequest request, std::shared_ptr<RpcCall> call) {
  std::vector<Tensor> released;  // destroyed after the lock is released
  const MutexLock lock(mutex_);
  if (stops_) throw ended_error(parts_.task);
  const v1::SessionRequest::Run& run = request.message.run();
  release(run, released);
  if (run.number() <= last_run_) {
    fail(ErrorCode::kInvalidArgument, parts_.task, ": run ", run.number(),
         " is out of order; expected a number above ", last_run_);
  }
  const std::shared_ptr<const Program> program = find_program(run);
  if (run.arguments_size() != program->message.arguments_size()) {
    fail(ErrorCode::kInvalidArgument, parts_.task, ": number of arguments: expected ",
         program->message.arguments_size(), ", got ", run.arguments_size());
  }
  last_run_ = run.number();
  (void)runs_[run.number()];
  waiting_.push_back({std::move(request), program, std::move(call)});
  if (num_idle_ < waiting_.size() && threads_.size() < kMostThreads) {
    threads_.push_back(Executor::system().start("session", [this] { work(); }));
  } else {
    changed_.notify_one();
  }
}

std::shared_ptr<const TaskSession::Program> TaskSession::find_program(
    const v1::SessionRequest::Run& run) {
  std::shared_ptr<const Program>& known = programs_[run.signature()];
  if (known == nullptr && !run.program().empty()) {
    const auto program = std::make_shared<Program>();
    program->message = parse_program(run.program());
    program->last_uses = last_uses(program->message);
    for (const auto& each : program->message.kept()) {
      program->kept.emplace(each.value(), each.num_receivers());
    }
    known = program;
  }
  if (known != nullptr) return known;
  programs_.erase(run.signature());
  fail(ErrorCode::kInvalidArgument, parts_.task, ": there is no program with the signature '",
       run.signature(), "'; expected this request or an earlier one to contain it");
}

void TaskSession::release(const v1::SessionRequest::Run& run, std::vector<Tensor>& released) {
  for (const ValueAddress& address : run.released()) {
    const auto of_run = runs_.find(address.run());
    if (of_run == runs_.end()) continue;
    if (!of_run->second.has_ended) of_run->second.released.insert(address.value());
    if (!of_run->second.has_ended) continue;
    if (auto held = of_run->second.values.extract(address.value())) {
      released.push_back(std::move(held.mapped().value));
    }
    if (of_run->second.values.empty()) runs_.erase(of_run);
  }
}

void TaskSession::work() {
  for (;;) {
    Job job;
    {
      const MutexLock lock(mutex_);
      ++num_idle_;
      changed_.wait_until(mutex_, TimePoint::max(),
                          [this]() TUTTI_REQUIRES(mutex_) { return stops_ || !waiting_.empty(); });
      --num_idle_;
      if (stops_) return;
      job = std::move(waiting_.front());
      waiting_.pop_front();
      ++num_working_;
    }
    execute(job);
    job = {};
    const MutexLock lock(mutex_);
    --num_working_;
  }
}

void TaskSession::execute(const Job& job) {
  std::optional<Error> error;
  try {
    Execution(*this, job).run();
  } catch (const Error& failure) {
    error = failure;
  } catch (const std::exception& failure) {
    error = Error(ErrorCode::kInternal, concat(parts_.task, ": ", failure.what()));
  }
  end_run(job.request.message.run().number(), error.has_value());
  if (error) {
    job.call->fail(*error);
  } else {
    job.call->reply({});
  }
}

void TaskSession::keep(std::uint64_t run, ValueNumber number, const Tensor& value,
                       std::size_t num_receivers) {
  std::vector<std::shared_ptr<RpcCall>> fetches;
  {
    const MutexLock lock(mutex_);
    if (stops_) return;
    Held& held = runs_[run].values[number];
    held.value = value;
    held.num_receivers = num_receivers;
    fetches.swap(held.fetches);
    note_fetched(run, number, fetches.size());
  }
  for (const auto& fetch : fetches) fetch->reply(encode_nest(Nest(value)));
}

/// Drops a value once all receivers have received it. Otherwise, the next update of a variable that
/// shares memory with the value would copy that memory.
void TaskSession::note_fetched(std::uint64_t number, ValueNumber value, std::size_t times) {
  Run& run = runs_.at(number);
  Held& held = run.values.at(value);
  if (held.num_receivers == 0) return;
  held.num_receivers -= std::min(held.num_receivers, times);
  if (held.num_receivers > 0) return;
  run.values.erase(value);
  if (run.has_ended && run.values.empty()) runs_.erase(number);
}

/// Ends a run. A failed run keeps no values.
void TaskSession::end_run(std::uint64_t number, bool has_failed) {
  std::vector<Held> dropped;  // destroyed, and their fetches replied to, after unlocking
  {
    const MutexLock lock(mutex_);
    if (stops_) return;
    Run& run = runs_[number];
    run.has_ended = true;
    std::erase_if(run.values, [&](auto& each) {
      const bool is_kept = each.second.value.defined() && !run.released.contains(each.first);
      if (is_kept && !has_failed) return false;
      dropped.push_back(std::move(each.second));
      return true;
    });
    if (run.values.empty()) runs_.erase(number);
  }
  for (const Held& held : dropped) {
    for (const auto& fetch : held.fetches) fetch->fail(no_value(parts_.task));
  }
}

Tensor TaskSession::own_value(const ValueAddress& address) const {
  const MutexLock lock(mutex_);
  const auto run = runs_.find(address.run());
  if (run != runs_.end()) {
    const auto held = run->second.values.find(address.value());
    if (held != run->second.values.end() && held->second.value.defined()) return held->second.value;
  }
  throw no_value(parts_.task);
}

void TaskSession::fetch(const ValueAddress& address, std::shared_ptr<RpcCall> call) {
  Tensor value;
  {
    const MutexLock lock(mutex_);
    if (stops_) throw ended_error(parts_.task);
    const bool is_over = address.run() <= last_run_ && !runs_.contains(address.run());
    if (is_over) throw no_value(parts_.task);
    Run& run = runs_[address.run()];
    const auto held = run.values.find(address.value());
    if (held != run.values.end()) value = held->second.value;
    if (!value.defined()) {
      if (run.has_ended) throw no_value(parts_.task);
      return run.values[address.value()].fetches.push_back(std::move(call));
    }
    note_fetched(address.run(), address.value(), 1);
  }
  call->reply(encode_nest(Nest(value)));
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
  std::size_t count = 0;
  for (const auto& [number, run] : runs_) {
    count += static_cast<std::size_t>(std::ranges::count_if(
        run.values, [](const auto& each) { return each.second.value.defined(); }));
  }
  return count;
}

}  // namespace tutti::internal
