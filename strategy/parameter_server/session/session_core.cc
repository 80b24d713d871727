// Connecting to all tasks, asking in order, letting go of what nobody needs; what a session says of
// tasks that died.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/session/session_core.h"
#include "tutti/core/random.h"

#include <algorithm>
#include <chrono>

#include "strategy/parameter_server/session/rpc_options.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/logging.h"
#include "tutti/strategy/parameter_server/coordinator/nest_conversion.h"

namespace tutti::internal {
namespace {

/// Beyond it whoever asks waits.
constexpr std::size_t kMostUnderWay = 1024;
constexpr const char* kClient = "client";

bool may_be_lost_task(ErrorCode code) {
  return code == ErrorCode::kUnavailable || code == ErrorCode::kAborted ||
         code == ErrorCode::kDeadlineExceeded;
}

}  // namespace

HeldValue::~HeldValue() {
  if (const auto alive = core.lock()) alive->release(*this);
}

SessionCore::SessionCore(std::string target, SessionOptions options)
    : target_(std::move(target)), options_(std::move(options)), session_(new_run_nonce()) {}

SessionCore::~SessionCore() {
  try {
    wait();
  } catch (const std::exception& error) {
    log_warning(concat("Session: ended with an error that nobody has seen: ", error.what()));
  }
  announce_return();
}

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

/// `task`: who is expected; nullptr: whoever answers.
void SessionCore::open(const Task* task, std::shared_ptr<RpcClient> client) {
  TaskRequest request{TaskRequestKind::kOpen, session_};
  // Less than here, so that the error is that of who waits for a value, and names it.
  request.details = nest_of_integer(std::max<std::int64_t>(1, options_.timeout.count() * 3 / 4));
  Link link;
  link.welcome = to_welcome(decode_nest(client->call(encode(request), deadline())));
  link.client = std::move(client);
  if (task == nullptr) {
    own_task_ = link.welcome.task;
    cluster_ = ClusterSpec::from_json(Json::parse(link.welcome.cluster), "cluster of the target");
  }
  links_.emplace(link.welcome.task, std::move(link));
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

const TaskWelcome& SessionCore::welcome_of(const Task& task) const {
  const auto found = links_.find(task);
  if (found != links_.end()) return found->second.welcome;
  fail(ErrorCode::kInvalidArgument, "Session: there is no task '", task, "'; expected one of ",
       cluster_);
}

SessionCore::Link& SessionCore::link(const Task& task) {
  (void)welcome_of(task);
  return links_.at(task);
}

SessionCore::Place SessionCore::place(const char* who) const {
  const DeviceSpec scope = current_device_scope();
  Place place{own_task_, ""};
  if (scope.job) place.task = {*scope.job, 0};
  if (scope.task) {
    place.task.index = *scope.task;
  } else if (scope.job && cluster_.count(*scope.job) > 0) {
    place.task.index = cluster_.task_indices(*scope.job).front();
  }
  if (scope.replica.value_or(0) != 0 || !links_.contains(place.task)) {
    std::vector<std::string> names;
    for (const auto& [task, link] : links_) names.push_back(task.device_prefix());
    fail(ErrorCode::kInvalidArgument, "Session::", who, ": the device scope '", scope.to_string(),
         "' names no task of the cluster; expected one of ", join(names));
  }
  if (scope.type) {
    place.device = DeviceSpec{.type = scope.type, .index = scope.index.value_or(0)}.to_string();
  }
  return place;
}

void SessionCore::count(const std::string& from, const std::string& to, const Nest& value) {
  Counted& counted = counted_[{from, to}];
  ++counted.first;
  counted.second += bytes_of(value);
}

TaskArgument SessionCore::argument_of(const TaskInput& input, const Task& task) {
  if (input.held_ == nullptr) {
    count(kClient, task.device_prefix(), input.value_);
    return {{}, input.value_};
  }
  if (input.held_->core.lock().get() != this) {
    fail(ErrorCode::kInvalidArgument,
         "Session: an argument is a value of another session; expected one of this session; try "
         "fetch(), and give what it returns");
  }
  ValueAddress from = input.held_->address;
  from.path = input.path_;
  if (from.task != task) input.held_->moved_to.insert(task);
  return {std::move(from), {}};
}

TaskValue SessionCore::post(TaskRequestKind kind, const Place& place, const std::string& name,
                            const std::vector<TaskInput>& inputs, Nest details,
                            const std::vector<std::string>& also_changes) {
  const NoDeviceScope here;
  Link& to = link(place.task);
  make_room(to);
  TaskValue result;
  result.core_ = shared_from_this();
  result.held_ = std::make_shared<HeldValue>();
  result.held_->address.task = place.task;
  std::vector<UnderWay> swept;  // destroyed without the lock
  const MutexLock lock(mutex_);
  sweep(swept);
  TaskRequest request{kind, session_, last_op_ + 1, name, place.device, {}, std::move(details)};
  UnderWay op;
  for (const TaskInput& input : inputs) {
    request.arguments.push_back(argument_of(input, place.task));
    if (input.held_ != nullptr) op.holds.push_back(input.held_);
  }
  op.reply = to.client->start(encode(request));
  result.held_->address.op = ++last_op_;
  result.held_->core = weak_from_this();
  op.holds.push_back(result.held_);
  to.under_way.push_back(std::move(op));
  if (kind == TaskRequestKind::kReadVariable) {
    reads_.insert_or_assign(name, TaskInput(result));
  } else if (kind != TaskRequestKind::kRun && kind != TaskRequestKind::kPut) {
    reads_.erase(name);
    for (const std::string& each : also_changes) reads_.erase(each);
  }
  return result;
}

void SessionCore::make_room(Link& link) {
  UnderWay oldest;
  {
    const MutexLock lock(mutex_);
    if (link.under_way.size() < kMostUnderWay) return;
    oldest = std::move(link.under_way.front());
    link.under_way.pop_front();
  }
  take_answer(oldest, deadline());
}

void SessionCore::sweep(std::vector<UnderWay>& swept) {
  for (auto& [task, link] : links_) {
    while (!link.under_way.empty() && link.under_way.front().reply->is_ready()) {
      swept.push_back(std::move(link.under_way.front()));
      link.under_way.pop_front();
      try {
        (void)swept.back().reply->wait(Clock::system().now());
      } catch (const Error& error) {
        if (!first_error_) first_error_ = error;
      }
    }
  }
}

void SessionCore::take_answer(const UnderWay& done, TimePoint deadline) {
  try {
    (void)done.reply->wait(deadline);
  } catch (const Error& error) {
    const MutexLock lock(mutex_);
    if (!first_error_) first_error_ = error;
  }
}

void SessionCore::wait() {
  const MutexLock waiting(waiting_);
  const TimePoint end = deadline();
  for (auto& [task, link] : links_) {
    for (;;) {
      UnderWay oldest;
      {
        const MutexLock lock(mutex_);
        if (link.under_way.empty()) break;
        oldest = std::move(link.under_way.front());
        link.under_way.pop_front();
      }
      take_answer(oldest, end);
    }
  }
  std::optional<Error> first;
  {
    const MutexLock lock(mutex_);
    first.swap(first_error_);
  }
  if (first) throw explained(*first);
}

TaskVariable SessionCore::make_variable(const Place& place, const std::string& name,
                                        const Tensor& initial) {
  {
    const MutexLock lock(mutex_);
    if (!variables_.emplace(name, place.task).second) {
      fail(ErrorCode::kAlreadyExists, "Session::variable: '", name,
           "' was made in this session before; expected another name, or the variable itself");
    }
  }
  TaskVariable variable;
  variable.core_ = shared_from_this();
  variable.name_ = name;
  variable.shape_ = initial.shape();
  variable.dtype_ = initial.dtype();
  variable.task_ = place.task;
  (void)post(TaskRequestKind::kCreateVariable, place, name, {TaskInput(initial)});
  return variable;
}

TaskValue SessionCore::read(const TaskVariable& variable) {
  {
    const MutexLock lock(mutex_);
    const auto found = reads_.find(variable.name());
    if (found != reads_.end()) {
      TaskValue value;
      value.core_ = shared_from_this();
      value.held_ = found->second.held_;
      return value;
    }
  }
  return post(TaskRequestKind::kReadVariable, {variable.task(), ""}, variable.name(), {});
}

void SessionCore::change(TaskRequestKind kind, const TaskVariable& variable,
                         const std::vector<TaskInput>& inputs, Nest details,
                         const std::vector<std::string>& also) {
  (void)post(kind, {variable.task(), ""}, variable.name(), inputs, std::move(details), also);
}

Nest SessionCore::fetch(const ValueAddress& address) {
  const NoDeviceScope here;
  TaskRequest request{TaskRequestKind::kFetch, session_};
  request.arguments.push_back({address, {}});
  Nest value;
  try {
    value = decode_nest(link(address.task).client->call(encode(request), deadline()));
  } catch (const Error& error) {
    throw explained(error);
  }
  std::vector<UnderWay> swept;
  const MutexLock lock(mutex_);
  sweep(swept);
  count(address.task.device_prefix(), kClient, value);
  return value;
}

/// Where it is, and where it was moved to. Answers are of no interest.
void SessionCore::release(const HeldValue& held) noexcept {
  if (held.address.op == 0) return;  // it was never asked for
  try {
    TaskRequest request{TaskRequestKind::kRelease, session_};
    request.arguments.push_back({held.address, {}});
    const Packet packet = encode(request);
    (void)link(held.address.task).client->start(packet);
    for (const Task& task : held.moved_to) (void)link(task).client->start(packet);
  } catch (const std::exception& error) {
    log_info(concat("Session: a value could not be released: ", error.what()));
  }
}

std::vector<SessionTransfer> SessionCore::transfers() {
  std::vector<SessionTransfer> all;
  for (auto& [task, link] : links_) {
    const Packet request = encode(TaskRequest{TaskRequestKind::kTransfers, session_});
    using Came = std::tuple<std::string, int, std::uint64_t, std::uint64_t>;
    for (const auto& [job, index, values, bytes] : from_nest<std::vector<Came>>(
             decode_nest(link.client->call(request, deadline())), "transfers")) {
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

/// Nothing: it lives, and knows the session (or does not answer, which says nothing).
std::optional<std::string> SessionCore::why_lost(const Task& task, const Link& link) const {
  const std::string who = concat(task, " (", cluster_.task_address(task.type, task.index), ")");
  if (const auto away = link.client->why_broken()) return concat(who, " is gone (", *away, ")");
  try {
    const Packet request = encode(TaskRequest{TaskRequestKind::kTransfers, session_});
    (void)link.client->call(request,
                            deadline_after(Clock::system().now(), durations::kSilentAfter));
    return std::nullopt;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kAborted) return concat(who, " was started again");
    if (error.code() == ErrorCode::kUnavailable) return concat(who, " is gone");
    return std::nullopt;
  }
}

/// An error of a step looks like one of a connection: who is lost is asked, not guessed.
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
             "; what other tasks have lives on: try a new Session when all tasks are there, ",
             "and restore from a checkpoint what is gone"));
}

/// Servers end with their last session, unless they hear that another one comes.
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
      TaskRequest request{TaskRequestKind::kStay, session_};
      request.details = nest_of_integer(time);
      (void)link.client->call(encode(request),
                              deadline_after(Clock::system().now(), durations::kSilentAfter));
    } catch (const std::exception&) {  // it is lost, or does not answer
    }
  }
}

}  // namespace tutti::internal
