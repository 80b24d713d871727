// Implements SessionCore: connects to all tasks, runs programs, and names lost tasks in errors.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/session/session_core.h"

#include <algorithm>
#include <chrono>
#include <tuple>

#include "core/hash.h"
#include "strategy/parameter_server/session/rpc_options.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/logging.h"
#include "tutti/core/random.h"
#include "tutti/strategy/parameter_server/coordinator/nest_conversion.h"
#include "tutti/tensor/device_scope.h"

namespace tutti::internal {
namespace {

constexpr const char* kClient = "client";

bool may_be_lost_task(ErrorCode code) {
  return code == ErrorCode::kUnavailable || code == ErrorCode::kAborted ||
         code == ErrorCode::kDeadlineExceeded;
}

}  // namespace

SessionCore::SessionCore(std::string target, SessionOptions options)
    : target_(std::move(target)), options_(std::move(options)), session_(new_run_nonce()) {}

SessionCore::~SessionCore() { announce_return(); }

TimePoint SessionCore::deadline() const {
  return deadline_after(Clock::system().now(), options_.timeout);
}

std::shared_ptr<RpcClient> SessionCore::connect_to(const std::string& target,
                                                   const MemberTask& server,
                                                   TimePoint deadline) const {
  ServerOptions how;
  how.job_id = options_.job_id;
  how.secret = options_.secret;
  how.tls = options_.tls;
  RpcClientOptions client = rpc_client_options({kClient, 0}, server, {}, how);
  client.connect_timeout = std::max<Duration>(deadline - Clock::system().now(), Duration::zero());
  try {
    return RpcClient::connect(target, RpcMethod::kOperate, client);
  } catch (const Error& error) {
    const bool is_absent = error.code() == ErrorCode::kDeadlineExceeded;
    throw Error(is_absent ? ErrorCode::kUnavailable : error.code(),
                concat("Session(\"", target_, "\"): ", error.message()));
  }
}

/// Opens the session on the task that `client` calls. `task` is the expected task; nullptr: any.
void SessionCore::open(const Task* task, std::shared_ptr<RpcClient> client) {
  TaskRequest request = new_request();
  // This timeout is shorter than the session's, so that the waiting task reports the error first:
  // only that error names the value.
  const std::int64_t between_tasks = std::max<std::int64_t>(1, options_.timeout.count() * 3 / 4);
  request.message.set_open(static_cast<std::uint64_t>(between_tasks));
  Link link;
  auto [job, index, cluster, devices] = from_nest<TaskDescription>(
      decode_nest(client->call(encode(request), deadline())), "description of a task");
  const Task answering{job, index};
  link.devices = devices;
  link.client = std::move(client);
  if (task == nullptr) {
    own_task_ = answering;
    cluster_ = ClusterSpec::from_json(Json::parse(cluster), "cluster of the target");
  }
  links_.emplace(answering, std::move(link));
}

void SessionCore::connect() {
  const NoDeviceScope here;
  const TimePoint deadline = deadline_after(Clock::system().now(), options_.connect_timeout);
  open(nullptr, connect_to(target_, {"", 0, ""}, deadline));
  const std::string wire = target_.substr(0, target_.find("://"));
  for (const Task& task : cluster_.tasks()) {
    if (task == own_task_) continue;
    const std::string& address = cluster_.task_address(task.type, task.index);
    open(&task,
         connect_to(concat(wire, "://", address), {task.type, task.index, address}, deadline));
  }
}

SessionCore::Link& SessionCore::link(const Task& task) {
  const auto found = links_.find(task);
  if (found != links_.end()) return found->second;
  fail(ErrorCode::kInvalidArgument, "Session: there is no task '", task, "'; expected one of ",
       cluster_);
}

std::shared_ptr<const TaskPlace> SessionCore::place(const DeviceSpec& scope) const {
  const auto place = std::make_shared<TaskPlace>();
  place->task = own_task_;
  if (scope.job) place->task = {*scope.job, 0};
  if (scope.task) {
    place->task.index = *scope.task;
  } else if (scope.job && cluster_.count(*scope.job) > 0) {
    place->task.index = cluster_.task_indices(*scope.job).front();
  }
  if (scope.replica.value_or(0) != 0 || !links_.contains(place->task)) {
    std::vector<std::string> names;
    for (const auto& [task, link] : links_) names.push_back(task.device_prefix());
    fail(ErrorCode::kInvalidArgument, "Session: the device scope '", scope.to_string(),
         "' does not name a task of the cluster; expected one of ", join(names));
  }
  if (scope.type) {
    place->device = DeviceSpec{.type = scope.type, .index = scope.index.value_or(0)}.to_string();
  }
  place->spec = DeviceSpec::parse(place->task.device_prefix() + place->device);
  return place;
}

void SessionCore::count(const std::string& from, const std::string& to, const Tensor& value) {
  Counted& counted = counted_[{from, to}];
  ++counted.first;
  counted.second += value.num_bytes();
}

std::shared_ptr<RpcReply> SessionCore::start(const Task& task, std::uint64_t number,
                                             TaskPart& part) {
  Link& to = link(task);
  v1::SessionRequest::Run& run = *part.request.message.mutable_run();
  part.request.message.set_session(session_);
  run.set_number(number);
  std::string program = part.program.SerializeAsString();
  run.set_signature(hash_of(program));
  if (!to.programs.contains(run.signature())) run.set_program(std::move(program));
  for (const auto& [of_run, value] : to.released) {
    *run.add_released() = value_address(task, of_run, value);
  }
  auto reply = to.client->start(encode(part.request));
  to.released.clear();
  to.programs.insert(run.signature());
  counted_[{kClient, task.device_prefix()}].second += run.program().size();
  for (const Tensor& each : part.request.tensors) count(kClient, task.device_prefix(), each);
  return reply;
}

/// Throws if the task is lost. Without this check, another task that needs its values would spend
/// several seconds trying to connect to it.
void SessionCore::require_connected(const Task& task) {
  const auto why = link(task).client->why_broken();
  if (why)
    throw explained(Error(ErrorCode::kUnavailable, concat("Session::run: ", task, ": ", *why)));
}

std::uint64_t SessionCore::run(std::map<Task, TaskPart> parts) {
  const NoDeviceScope here;
  for (const auto& [task, part] : parts) {
    require_connected(task);
    for (const auto& argument : part.request.message.run().arguments()) {
      if (argument.has_address()) require_connected(task_of(argument.address()));
    }
  }
  std::vector<std::pair<Task, std::shared_ptr<RpcReply>>> replies;
  std::vector<Error> errors;
  std::uint64_t number = 0;
  {
    const MutexLock lock(mutex_);  // held so that runs start in the same order on all tasks
    number = ++last_run_;
    for (auto& [task, part] : parts) {
      try {
        replies.emplace_back(task, start(task, number, part));
      } catch (const Error& error) {
        errors.push_back(error);
      }
    }
  }
  const TimePoint end = deadline();
  for (const auto& [task, reply] : replies) {
    try {
      (void)reply->wait(end);
    } catch (const Error& error) {
      errors.push_back(error);
    }
  }
  if (errors.empty()) return number;
  // No tensor of this process refers to these values, so the tasks must release them.
  for (const auto& [task, part] : parts) {
    for (const auto& kept : part.program.kept()) release(task, number, kept.value());
  }
  const auto is_cause = [](const Error& error) { return error.code() != ErrorCode::kCancelled; };
  const auto cause = std::ranges::find_if(errors, is_cause);
  throw explained(cause != errors.end() ? *cause : errors.front());
}

Tensor SessionCore::fetch(const Task& task, std::uint64_t run, ValueNumber value) {
  const NoDeviceScope here;
  TaskRequest request = new_request();
  *request.message.mutable_fetch() = value_address(task, run, value);
  Tensor fetched;
  try {
    fetched = from_nest<Tensor>(decode_nest(link(task).client->call(encode(request), deadline())),
                                "Session: a value");
  } catch (const Error& error) {
    throw explained(error);
  }
  const MutexLock lock(mutex_);
  count(task.device_prefix(), kClient, fetched);
  return fetched;
}

void SessionCore::release(const Task& task, std::uint64_t run, ValueNumber value) noexcept {
  const MutexLock lock(mutex_);
  links_.at(task).released.emplace_back(run, value);
}

TaskRequest SessionCore::new_request() const {
  TaskRequest request;
  request.message.set_session(session_);
  return request;
}

void SessionCore::add_variable(const std::string& name, const Task& task) {
  const MutexLock lock(mutex_);
  if (variables_.emplace(name, task).second) return;
  fail(ErrorCode::kAlreadyExists, "Session: the variable '", name,
       "' already exists in this session; expected a new name; use the existing variable or "
       "another name");
}

void SessionCore::remove_variable(const std::string& name) {
  const MutexLock lock(mutex_);
  variables_.erase(name);
}

std::vector<SessionTransfer> SessionCore::transfers() {
  std::vector<SessionTransfer> all;
  for (auto& [task, link] : links_) {
    TaskRequest request = new_request();
    request.message.set_transfers(true);
    using Came = std::tuple<std::string, int, std::uint64_t, std::uint64_t>;
    for (const auto& [job, index, values, bytes] : from_nest<std::vector<Came>>(
             decode_nest(link.client->call(encode(request), deadline())), "transfers")) {
      all.push_back({Task{job, index}.device_prefix(), task.device_prefix(), values, bytes});
    }
  }
  {
    const MutexLock lock(mutex_);
    for (const auto& [way, counted] : counted_) {
      all.push_back({way.first, way.second, counted.first, counted.second});
    }
  }
  std::ranges::sort(all, {}, [](const SessionTransfer& each) {
    return std::pair<const std::string&, const std::string&>(each.from, each.to);
  });
  return all;
}

/// Returns the reason why the task is lost; nullopt if it still knows the session or does not
/// respond in time.
std::optional<std::string> SessionCore::why_lost(const Task& task, const Link& link) const {
  const std::string who = concat(task, " (", cluster_.task_address(task.type, task.index), ")");
  if (const auto away = link.client->why_broken()) return concat(who, " is lost (", *away, ")");
  try {
    TaskRequest request = new_request();
    request.message.set_transfers(true);
    (void)link.client->call(encode(request),
                            deadline_after(Clock::system().now(), durations::kSilentAfter));
    return std::nullopt;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnavailable) return std::nullopt;
    return concat(who, " is lost");
  }
}

/// Returns the error with the lost tasks and variables added to its message. A failed operation may
/// report the same error code as a lost connection, so this function calls every task to find the
/// lost ones.
Error SessionCore::explained(const Error& error) {
  if (!may_be_lost_task(error.code())) return error;
  std::vector<std::string> losses;
  for (const auto& [task, link] : links_) {
    const auto why = why_lost(task, link);
    if (!why) continue;
    std::vector<std::string> names;
    const MutexLock lock(mutex_);
    has_lost_a_task_ = true;
    for (const auto& [name, place] : variables_) {
      if (place == task) names.push_back(concat("'", name, "'"));
    }
    losses.push_back(concat(
        *why, ", and with it ",
        names.empty() ? "its values" : concat("its values and the variables ", join(names))));
  }
  if (losses.empty()) return error;
  return Error(
      error.code(),
      concat(error.message(), "; Session: ", join(losses, "; "),
             "; other tasks keep their values; create a new Session once all tasks have joined, ",
             "and restore the lost variables from a checkpoint"));
}

/// Announces that another session will follow; otherwise servers exit after their last session.
void SessionCore::announce_return() noexcept {
  {
    const MutexLock lock(mutex_);
    if (!has_lost_a_task_) return;
  }
  const auto time = std::max<std::int64_t>(1, options_.timeout.count());
  for (const auto& [task, link] : links_) {
    if (link.client->why_broken()) continue;
    try {
      const NoDeviceScope here;
      TaskRequest request = new_request();
      request.message.set_stay(static_cast<std::uint64_t>(time));
      (void)link.client->call(encode(request),
                              deadline_after(Clock::system().now(), durations::kSilentAfter));
    } catch (const std::exception&) {  // the task is lost, or does not respond
    }
  }
}

}  // namespace tutti::internal
