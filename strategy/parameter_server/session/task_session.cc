// Threads that run programs in their order; values of other tasks are requested before the first
// operation.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/session/task_session.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "core/hash.h"
#include "tutti/strategy/parameter_server/coordinator/nest_conversion.h"

namespace tutti::internal {
namespace {

/// Runs that are executed at once; the oldest ones, on every task, so that none waits for a run
/// that is not started.
constexpr std::size_t kMostThreads = 64;

Error no_value(const Task& task) {
  return Error(ErrorCode::kCancelled,
               concat(task, ": the value was released, or its run does not make it"));
}

Error ended_error(const Task& task) {
  return Error(ErrorCode::kCancelled, concat(task, ": the session has ended"));
}

}  // namespace

/// One run on its thread: values by number, and those of other tasks that are on their way.
class TaskSession::Execution {
 public:
  Execution(TaskSession& session, const Job& job) : session_(session), job_(job) {}

  void run() {
    const TaskProgram& program = job_.program->program;
    request_values(program);
    for (std::size_t i = 0; i < program.operations.size(); ++i) {
      const ProgramOperation& operation = program.operations[i];
      try {
        execute(operation);
      } catch (const Error& error) {
        throw error.with_context(concat(session_.parts_.task, ": ", operation.where));
      } catch (const std::exception& error) {
        fail(ErrorCode::kInternal, session_.parts_.task, ": ", operation.where, ": ", error.what());
      }
      for (const ValueNumber number : job_.program->last_uses[i]) values_.erase(number);
    }
  }

 private:
  void request_values(const TaskProgram& program) {
    for (const auto& [number, task] : program.received) {
      request(number, {task, job_.request.number, number});
    }
    for (std::size_t i = 0; i < program.arguments.size(); ++i) {
      const auto& argument = job_.request.arguments[i];
      if (const Tensor* const tensor = std::get_if<Tensor>(&argument)) {
        values_.emplace(program.arguments[i], *tensor);
      } else {
        request(program.arguments[i], std::get<ValueAddress>(argument));
      }
    }
  }

  void request(ValueNumber number, const ValueAddress& from) {
    if (from.task == session_.parts_.task) {
      values_.emplace(number, session_.own_value(from));
      return;
    }
    auto reply =
        session_.parts_.peer(from.task)->start(encode(TaskRequest{session(), FetchRequest{from}}));
    requested_.emplace(number, std::pair(from.task, std::move(reply)));
  }

  void execute(const ProgramOperation& operation) {
    std::vector<Tensor> inputs;
    for (const ValueNumber number : operation.inputs) inputs.push_back(value_of(number));
    const std::vector<Tensor> outputs =
        session_.parts_.executor.execute(operation, std::move(inputs));
    for (std::size_t i = 0; i < operation.outputs.size(); ++i) {
      const ValueNumber number = operation.outputs[i];
      if (job_.program->held.contains(number)) {
        session_.set(job_.request.number, number, outputs.at(i));
      }
      values_.emplace(number, outputs.at(i));
    }
  }

  const Tensor& value_of(ValueNumber number) {
    const auto requested = requested_.find(number);
    if (requested == requested_.end()) return values_.at(number);
    const auto& [task, reply] = requested->second;
    const Nest nest =
        decode_nest(reply->wait(deadline_after(Clock::system().now(), session_.timeout_)));
    if (nest.tensor() == nullptr) fail_conversion("a value of another task", "a Tensor", nest);
    {
      const MutexLock lock(session_.mutex_);
      Counted& counted = session_.counted_[task];
      ++counted.values;
      counted.bytes += nest.tensor()->num_bytes();
    }
    requested_.erase(requested);
    return values_.emplace(number, *nest.tensor()).first->second;
  }

  std::uint64_t session() const { return session_.number_; }

  TaskSession& session_;
  const Job& job_;
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
      for (const Told& told : held.asked) told({{}, ended_error(parts_.task)});
    }
  }
  for (const Job& job : waiting) job.call->fail(ended_error(parts_.task));
}

bool TaskSession::has_ended() const {
  const MutexLock lock(mutex_);
  return stops_ && num_working_ == 0;
}

void TaskSession::run(RunRequest request, std::shared_ptr<RpcCall> call) {
  std::vector<Tensor> released;  // destroyed without the lock
  const MutexLock lock(mutex_);
  if (stops_) throw ended_error(parts_.task);
  release(request, released);
  if (request.number <= last_run_) {
    fail(ErrorCode::kInvalidArgument, parts_.task, ": run ", request.number,
         " came before; expected one after ", last_run_);
  }
  Job job{{}, find_program(request), std::move(call)};
  if (request.arguments.size() != job.program->program.arguments.size()) {
    fail(ErrorCode::kInvalidArgument, parts_.task, ": a run with ", request.arguments.size(),
         " arguments; expected ", job.program->program.arguments.size());
  }
  last_run_ = request.number;
  Run& run = runs_[request.number];
  for (const ValueNumber number : job.program->program.kept) run.values[number].is_kept = true;
  job.request = std::move(request);
  waiting_.push_back(std::move(job));
  if (num_idle_ < waiting_.size() && threads_.size() < kMostThreads) {
    threads_.push_back(Executor::system().start("session", [this] { work(); }));
  } else {
    changed_.notify_one();
  }
}

std::shared_ptr<const TaskSession::Program> TaskSession::find_program(const RunRequest& request) {
  if (!request.program.empty()) {
    if (hash_of(request.program) != request.signature) {
      fail(ErrorCode::kDataLoss, parts_.task, ": a program of another signature than ",
           request.signature);
    }
    const auto program = std::make_shared<Program>();
    program->program = decode_program(std::as_bytes(std::span(request.program)));
    program->last_uses = last_uses(program->program);
    for (const auto* values : {&program->program.kept, &program->program.sent}) {
      program->held.insert(values->begin(), values->end());
    }
    programs_.insert_or_assign(request.signature, program);
  }
  const auto found = programs_.find(request.signature);
  if (found != programs_.end()) return found->second;
  fail(ErrorCode::kInvalidArgument, parts_.task, ": no program of the signature ",
       request.signature, "; expected one that came before");
}

void TaskSession::release(const RunRequest& request, std::vector<Tensor>& released) {
  const auto drop_if_empty = [this](std::uint64_t number) TUTTI_REQUIRES(mutex_) {
    const auto run = runs_.find(number);
    if (run != runs_.end() && run->second.has_ended && run->second.values.empty()) runs_.erase(run);
  };
  for (const ValueAddress& address : request.released) {
    const auto run = runs_.find(address.run);
    if (run == runs_.end() || !run->second.has_ended) continue;
    if (auto held = run->second.values.extract(address.value)) {
      released.push_back(std::move(held.mapped().value));
    }
    drop_if_empty(address.run);
  }
  for (const std::uint64_t number : request.ended_runs) {
    const auto run = runs_.find(number);
    if (run == runs_.end() || !run->second.has_ended) continue;
    std::erase_if(run->second.values, [&](auto& each) {
      if (each.second.is_kept) return false;
      released.push_back(std::move(each.second.value));
      return true;
    });
    drop_if_empty(number);
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
    const std::shared_ptr<RpcCall> last = std::move(job.call);  // answered without the lock
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
  end_run(job.request.number, error);
  if (error) {
    job.call->fail(*error);
  } else {
    job.call->reply({});
  }
}

void TaskSession::set(std::uint64_t run, ValueNumber number, const Tensor& value) {
  std::vector<Told> asked;
  {
    const MutexLock lock(mutex_);
    if (stops_) return;
    Held& held = runs_[run].values[number];
    held.value = value;
    asked.swap(held.asked);
  }
  for (const Told& told : asked) told({value, {}});
}

void TaskSession::end_run(std::uint64_t number, std::optional<Error> error) {
  if (error) error = Error(ErrorCode::kCancelled, concat("the run failed: ", error->message()));
  const Error missing = error.value_or(no_value(parts_.task));
  std::vector<Told> asked;
  {
    const MutexLock lock(mutex_);
    if (stops_) return;
    Run& run = runs_[number];
    run.has_ended = true;
    run.error = error;
    std::erase_if(run.values, [&](auto& each) {
      if (each.second.value.defined() && !error) return false;
      std::ranges::move(each.second.asked, std::back_inserter(asked));
      return true;
    });
    if (!error && run.values.empty()) runs_.erase(number);
  }
  for (const Told& told : asked) told({{}, missing});
}

Tensor TaskSession::own_value(const ValueAddress& address) const {
  const MutexLock lock(mutex_);
  const auto run = runs_.find(address.run);
  if (run != runs_.end()) {
    const auto held = run->second.values.find(address.value);
    if (held != run->second.values.end() && held->second.value.defined()) return held->second.value;
  }
  throw no_value(parts_.task);
}

void TaskSession::when_there(const ValueAddress& address, Told told) {
  Outcome outcome{{}, ended_error(parts_.task)};
  {
    const MutexLock lock(mutex_);
    if (!stops_) {
      const bool is_over = address.run <= last_run_ && !runs_.contains(address.run);
      Run none;
      none.has_ended = true;
      Run& run = is_over ? none : runs_[address.run];
      const auto held = run.values.find(address.value);
      if (held != run.values.end() && held->second.value.defined()) {
        outcome = {held->second.value, {}};
      } else if (!run.has_ended) {
        return run.values[address.value].asked.push_back(std::move(told));
      } else {
        outcome.error = run.error.value_or(no_value(parts_.task));
      }
    }
  }
  told(outcome);
}

void TaskSession::fetch(const ValueAddress& address, std::shared_ptr<RpcCall> call) {
  when_there(address, [call = std::move(call)](const Outcome& outcome) {
    if (outcome.error) return call->fail(*outcome.error);
    call->reply(encode_nest(Nest(outcome.value)));
  });
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
