// Implements TaskSessions.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/session/task_sessions.h"

#include <chrono>
#include <utility>

#include "strategy/parameter_server/session/rpc_options.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/strategy/parameter_server/coordinator/nest_conversion.h"

namespace tutti::internal {

TaskSessions::TaskSessions(const ClusterSpec& cluster, const Task& self,
                           const ServerOptions& options, std::function<void()> left)
    : cluster_(cluster), options_(options), left_(std::move(left)) {
  parts_.task = self;
  parts_.peer = [this](const Task& task) { return peer(task); };
}

TaskSessions::~TaskSessions() {
  {
    const MutexLock lock(connecting_);
    for (const auto& [task, peer] : peers_) {
      if (peer == nullptr) continue;
      peer->fail_all(Error(ErrorCode::kCancelled, concat(parts_.task, ": the server was stopped")));
    }
  }
  std::map<std::uint64_t, Open> open;
  std::vector<std::shared_ptr<TaskSession>> ended;
  {
    const MutexLock lock(mutex_);
    open.swap(open_);
    ended.swap(ended_);
  }
  for (const auto& [number, each] : open) each.session->end();
}

TaskDescription TaskSessions::description() const {
  const std::string own = concat(parts_.task.device_prefix(), "/device:");
  std::vector<std::string> devices = {own + "CPU:0"};
  for (const Device& device : default_devices()) {
    if (device.type == DeviceType::kGpu) devices.push_back(concat(own, "GPU:", device.index));
  }
  return {parts_.task.type, parts_.task.index, cluster_.to_json().dump(), devices};
}

void TaskSessions::take(std::shared_ptr<RpcCall> call) {
  TaskRequest request = decode_task_request(call->request());
  const v1::SessionRequest& message = request.message;
  using Request = v1::SessionRequest;
  if (message.request_case() == Request::kOpen) return open(*call, message);
  const std::shared_ptr<TaskSession> session = find(message.session());
  switch (message.request_case()) {
    case Request::kRun:
      return session->run(std::move(request), std::move(call));
    case Request::kFetch:
      return session->fetch(message.fetch(), std::move(call));
    case Request::kTransfers:
      return call->reply(encode_nest(session->transfers()));
    case Request::kStay:
      stay(message.stay());
      return call->reply({});
    default:
      fail(ErrorCode::kDataLoss, "session request: expected one of open, run, fetch, ",
           "transfers and stay, got none");
  }
}

namespace {

std::chrono::milliseconds checked_time(std::uint64_t milliseconds) {
  constexpr std::uint64_t kMost = 1'000'000'000;
  if (milliseconds <= kMost) return std::chrono::milliseconds(milliseconds);
  fail(ErrorCode::kInvalidArgument, "session: expected a duration of at most ", kMost, " ms, got ",
       milliseconds);
}

}  // namespace

void TaskSessions::open(RpcCall& call, const v1::SessionRequest& request) {
  const auto timeout = checked_time(request.open());
  std::vector<std::shared_ptr<TaskSession>> reaped;  // destroyed after the lock is released
  {
    const MutexLock lock(mutex_);
    std::erase_if(ended_, [&](std::shared_ptr<TaskSession>& each) {
      if (!each->has_ended()) return false;
      reaped.push_back(std::move(each));
      return true;
    });
    had_one_ = true;
    stays_until_ = {};
    Open& own = open_[request.session()];
    if (own.session == nullptr) {
      own = {call.peer().client, std::make_shared<TaskSession>(parts_, request.session(), timeout)};
    } else if (own.client != call.peer().client) {
      fail(ErrorCode::kAlreadyExists, parts_.task, ": another client already uses session number ",
           request.session());
    }
  }
  call.reply(encode_nest(to_nest(description())));
}

void TaskSessions::stay(std::uint64_t milliseconds) {
  const auto time = checked_time(milliseconds);
  const MutexLock lock(mutex_);
  stays_until_ = deadline_after(Clock::system().now(), time);
}

std::shared_ptr<TaskSession> TaskSessions::find(std::uint64_t number) const {
  const MutexLock lock(mutex_);
  const auto found = open_.find(number);
  if (found != open_.end()) return found->second.session;
  fail(ErrorCode::kAborted, parts_.task,
       ": expected an open session, got one that has ended or that began before this task was "
       "restarted; try a new Session");
}

void TaskSessions::client_left(const RpcPeer& peer) {
  {
    const MutexLock lock(mutex_);
    std::erase_if(open_, [&](auto& each) TUTTI_REQUIRES(mutex_) {
      if (each.second.client != peer.client) return false;
      each.second.session->end();
      ended_.push_back(std::move(each.second.session));
      return true;
    });
  }
  left_();
}

bool TaskSessions::are_over() const {
  const MutexLock lock(mutex_);
  return had_one_ && open_.empty() && Clock::system().now() >= stays_until_;
}

std::shared_ptr<RpcClient> TaskSessions::peer(const Task& task) {
  if (!cluster_.has_task(task)) {
    fail(ErrorCode::kInvalidArgument, parts_.task, ": there is no task '", task,
         "'; expected one of ", cluster_);
  }
  const MutexLock lock(connecting_);
  std::shared_ptr<RpcClient>& peer = peers_[task];
  // A new session may need this connection before any thread notices that the old connection broke.
  if (peer == nullptr || peer->why_broken()) {
    const std::string& address = cluster_.task_address(task.type, task.index);
    RpcClientOptions client =
        rpc_client_options(parts_.task, {task.type, task.index, address}, {}, options_);
    // The session is connected to all tasks, so a task that does not respond has died.
    client.connect_timeout = durations::kUnreachableAfter;
    peer = RpcClient::connect(concat("grpc://", address), RpcMethod::kOperate, client);
  }
  return peer;
}

}  // namespace tutti::internal
