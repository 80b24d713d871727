// The workers of a job, connected.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/worker_group.h"

#include <optional>

#include "tutti/cluster/multi_worker_util.h"
#include "tutti/cluster/tcp/tcp_transport.h"
#include "tutti/core/logging.h"
#include "tutti/core/sync.h"

namespace tutti {
namespace {

std::vector<MemberTask> members_of(const ClusterSpec& cluster) {
  std::vector<MemberTask> members;
  for (const Task& task : training_tasks(cluster)) {
    members.push_back({task.type, task.index, cluster.task_address(task.type, task.index)});
  }
  if (members.empty()) members.push_back({"worker", 0, ""});
  return members;
}

int number_of(const ClusterResolver& resolver) {
  if (resolver.cluster_spec().empty()) return 0;
  validate_cluster(resolver);
  const Task task = *resolver.task();
  if (task.type != "chief" && task.type != "worker") {
    fail(ErrorCode::kInvalidArgument, resolver.name(), ": this process is ", task,
         ", which does not train; expected chief or worker");
  }
  return id_in_cluster(resolver.cluster_spec(), task);
}

/// "10.0.0.2" of "10.0.0.2:2222".
std::string host_of(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  return colon == std::string::npos ? address : address.substr(0, colon);
}

}  // namespace

/// Ends the transport's calls for the first fatal verdict, also one that came before the transport.
class WorkerGroup::Alarm {
 public:
  void raise(const Verdict& verdict) {
    if (!verdict.is_fatal) {
      if (verdict.kind == VerdictKind::kStuck) log_warning(verdict.message);
      return;
    }
    std::shared_ptr<Transport> transport;
    {
      MutexLock lock(mutex_);
      if (reason_) return;
      reason_ = to_error(verdict);
      transport = transport_.lock();
    }
    log(LogLevel::kError, verdict.message);
    if (transport) transport->abort(*reason_);
  }
  void watch(const std::shared_ptr<Transport>& transport) {
    std::optional<Error> reason;
    {
      MutexLock lock(mutex_);
      transport_ = transport;
      reason = reason_;
    }
    if (reason) transport->abort(*reason);
  }

 private:
  Mutex mutex_;
  std::weak_ptr<Transport> transport_;
  std::optional<Error> reason_;
};

WorkerGroup::WorkerGroup(Private, std::vector<MemberTask> tasks, int worker)
    : tasks_(std::move(tasks)),
      worker_(worker),
      progress_(std::make_shared<ProgressBoard>()),
      alarm_(std::make_shared<Alarm>()) {}

std::shared_ptr<WorkerGroup> WorkerGroup::join(const ClusterResolver& resolver,
                                               const WorkerGroupOptions& options) {
  const int worker = number_of(resolver);
  auto group =
      std::make_shared<WorkerGroup>(Private{}, members_of(resolver.cluster_spec()), worker);
  if (group->num_workers() > 1) group->connect(options);
  return group;
}

void WorkerGroup::connect(const WorkerGroupOptions& options) {
  const TimePoint deadline = deadline_after(Clock::system().now(), options.join_timeout);
  JoinOptions join = options.join;
  join.client.timeout = options.join_timeout;
  join.client.progress = progress_;
  join.client.on_verdict = [alarm = alarm_](const Verdict& verdict) { alarm->raise(verdict); };
  plane_ = join_job(tasks_, static_cast<std::size_t>(worker_), join);
  plane_.client->wait_for_members(deadline);
  TcpOptions tcp{.key_prefix = "workers"};
  const std::string host = host_of(tasks_[static_cast<std::size_t>(worker_)].address);
  if (!host.empty()) tcp.address = host;
  transport_ = tcp_transport(worker_, num_workers(), *plane_.client, tcp);
  alarm_->watch(transport_);
}

WorkerGroup::~WorkerGroup() {
  transport_.reset();
  plane_.client.reset();
  plane_.server.reset();
}

std::string WorkerGroup::name_of(int worker) const {
  return tasks_.at(static_cast<std::size_t>(worker)).to_string();
}

std::unique_ptr<Communicator> WorkerGroup::make_communicator(const CommunicatorOptions& options) {
  if (num_workers() == 1) return std::move(in_process_communicators(1, options).front());
  return tutti::make_communicator(transport_, options);
}

}  // namespace tutti
