// Implements WorkerGroup: joins, connects and reconnects the workers of a job.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/worker_group.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "cluster/net/socket.h"
#include "core/names.h"
#include "tutti/cluster/multi_worker_util.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/cluster/resolver_registry.h"
#include "tutti/core/executor.h"
#include "tutti/core/logging.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/mpi/mpi_transport.h"

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
  const Task task = require_task(resolver);
  if (task.type != "chief" && task.type != "worker") {
    fail(ErrorCode::kInvalidArgument, resolver.name(), ": this process is ", task,
         ", which does not train; expected a chief or a worker");
  }
  return id_in_cluster(resolver.cluster_spec(), task);
}

/// Key that is set once the workers have stored all values that a replacement needs. It is not
/// enough that this process's predecessor was connected: the other workers may have lost the
/// predecessor before all were connected, in which case they are still waiting for a first
/// connection.
constexpr const char* kReadyKey = "workers/ready";
/// Prefix of the keys of the workers' states; the worker's number follows it. The value is
/// "<incarnation> <strategy> <state>".
constexpr const char* kStateKey = "workers/state/";
constexpr const char* kJoined = "joined";
constexpr const char* kConnected = "connected";
constexpr const char* kGoesBack = "goes_back";

/// Counters of the groups that this process has connected, keyed by the task's address and
/// incarnation, because threads of one process may be different workers. Thread-safe.
class ConnectedGroups {
 public:
  static ConnectedGroups& of_process() {
    static ConnectedGroups groups;
    return groups;
  }
  int count(const Member& self) const {
    MutexLock lock(mutex_);
    const auto found = counts_.find(key_of(self));
    return found == counts_.end() ? 0 : found->second;
  }
  void add(const Member& self) {
    MutexLock lock(mutex_);
    ++counts_[key_of(self)];
  }

 private:
  static std::string key_of(const Member& self) {
    return concat(self.task.to_string(), " ", self.task.address, " ", self.incarnation);
  }
  mutable Mutex mutex_;
  std::map<std::string, int> counts_ TUTTI_GUARDED_BY(mutex_);
};

/// Returns an error after which connect() tries again.
Error while_connecting(const std::string& what) {
  return Error(ErrorCode::kUnavailable, concat("connecting the workers: ", what));
}

/// Converts the progress of a communicator to the form that heartbeats contain.
GroupProgress group_progress(const CallProgress& calls) {
  return {"", calls.entered, calls.finished, calls.call, calls.since};
}

/// Performs the address checks of connect_ranks() in advance, so that an error occurs before other
/// workers start waiting.
void check_listen_address(const std::string& address, const WorkerGroupOptions& options) {
  const auto endpoint = internal::parse_listen_address(address);
  internal::require(endpoint,
                    "workers: TUTTI_DATA_LISTEN: expected host:port, such as 0.0.0.0:5000, got '",
                    address, "'");
  const bool has_secret =
      options.join.client.secret.is_set() || JobSecret::from_environment().is_set();
  check_exposure("workers", endpoint->host,
                 {.has_secret = has_secret,
                  .allow_insecure_network = options.join.allow_insecure_network,
                  .allow_any_address = true});
  internal::check_can_listen("workers: TUTTI_DATA_LISTEN", *endpoint);
}

ConnectOptions connect_options(const WorkerGroupOptions& options, const std::string& address) {
  const Environment environment = Environment::of_process();
  const auto text_of = [&](const std::string& own, const char* name) {
    return own.empty() ? environment.find(name).value_or("") : own;
  };
  ConnectOptions connect{.way = options.way,
                         .allow_insecure_network = options.join.allow_insecure_network};
  if (const auto endpoint = internal::parse_listen_address(address)) {
    connect.address = endpoint->host;
  }
  connect.listen_at = text_of(options.listen_at, "TUTTI_DATA_LISTEN");
  connect.reached_at = text_of(options.reached_at, "TUTTI_DATA_ADDRESS");
  if (!connect.listen_at.empty()) {
    check_listen_address(connect.listen_at, options);
  } else if (options.way != ConnectOptions::Way::kSharedMemory) {
    internal::check_can_listen("workers: this task's address in the cluster (or TUTTI_DATA_LISTEN)",
                               {connect.address, 0});
  }
  internal::require(
      connect.reached_at.empty() || internal::parse_endpoint(connect.reached_at),
      "workers: TUTTI_DATA_ADDRESS: expected host:port, such as 203.0.113.7:31000, got '",
      connect.reached_at, "'");
  return connect;
}

}  // namespace

/// Handles fatal verdicts. A *generation* of connections has the number of the last fatal verdict
/// before it; the next fatal verdict ends the calls of the generation's transport.
class WorkerGroup::Alarm {
 public:
  void raise(const Verdict& verdict) {
    std::shared_ptr<Transport> transport;
    const Error error = to_error(verdict);
    std::function<void(const Error&)> action;
    {
      MutexLock lock(mutex_);
      last_number_ = verdict.number;
      changed_.notify_all();
      if (connecting_) connecting_->raise(while_connecting(verdict.message));
      transport = transport_.lock();
      if (!transport || first_) return;
      first_ = verdict;
      action = action_;
    }
    // Aborting runs on a separate thread, because it takes 0.2 s if a peer does not read, and must
    // not delay verdicts.
    MutexLock lock(ending_mutex_);
    ending_ = Executor::system().start("end-calls", [transport, error, action] {
      transport->abort(error);
      if (action) action(error);
    });
  }

  /// Waits until no thread is aborting the transport, which is about to be replaced.
  void settle() {
    MutexLock lock(ending_mutex_);
    ending_.reset();
  }

  void set_action(std::function<void(const Error&)> action) {
    MutexLock lock(mutex_);
    action_ = std::move(action);
  }

  /// Registers the connection attempt of a new generation. A newer verdict interrupts the attempt
  /// by raising `connecting`. Returns the number of the last verdict.
  std::uint64_t begin(std::shared_ptr<Interruption> connecting) {
    MutexLock lock(mutex_);
    connecting_ = std::move(connecting);
    return last_number_;
  }

  /// Watches `transport`, which belongs to the generation after verdict `number`. Returns false if
  /// there is a newer verdict.
  bool watch(const std::shared_ptr<Transport>& transport, std::uint64_t number) {
    MutexLock lock(mutex_);
    connecting_.reset();
    if (last_number_ != number) return false;
    transport_ = transport;
    first_.reset();
    return true;
  }

  /// Returns the verdict that ended this generation, waiting up to `patience` for it; nullopt if
  /// none arrives.
  std::optional<Verdict> verdict(Duration patience) {
    MutexLock lock(mutex_);
    const auto is_here = [&]() TUTTI_REQUIRES(mutex_) { return first_.has_value(); };
    changed_.wait_for(mutex_, patience, is_here);
    return first_;
  }

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  std::weak_ptr<Transport> transport_ TUTTI_GUARDED_BY(mutex_);
  std::shared_ptr<Interruption> connecting_ TUTTI_GUARDED_BY(mutex_);
  std::uint64_t last_number_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::optional<Verdict> first_ TUTTI_GUARDED_BY(mutex_);
  std::function<void(const Error&)> action_ TUTTI_GUARDED_BY(mutex_);
  Mutex ending_mutex_;
  std::unique_ptr<Thread> ending_ TUTTI_GUARDED_BY(ending_mutex_);
};

WorkerGroup::WorkerGroup(Private, std::vector<MemberTask> tasks, int worker)
    : tasks_(std::move(tasks)),
      worker_(worker),
      progress_(std::make_shared<ProgressTracker>()),
      alarm_(std::make_shared<Alarm>()) {}

std::shared_ptr<WorkerGroup> WorkerGroup::join(const ClusterResolver& resolver,
                                               const WorkerGroupOptions& options) {
  const int worker = number_of(resolver);
  auto group =
      std::make_shared<WorkerGroup>(Private{}, members_of(resolver.cluster_spec()), worker);
  if (group->num_workers() == 1) return group;
  if (group->has_addresses()) {
    group->join_job(options);
  } else {
    group->join_mpi(options);
  }
  return group;
}

/// Connects through MPI. MPI also distributes the control server's address, because MPI's launchers
/// provide no addresses. A launcher ends the job when a process dies, but does not detect stopped
/// or stuck processes.
void WorkerGroup::join_mpi(const WorkerGroupOptions& options) {
  transport_ = mpi_transport({.name = "workers", .timeout = options.join_timeout});
  if (transport_->size() != num_workers() || transport_->rank() != worker_) {
    fail(
        ErrorCode::kFailedPrecondition, "workers: this is worker ", worker_, " of ", num_workers(),
        ", but rank ", transport_->rank(), " of ", transport_->size(),
        " in the MPI job; expected the same rank and size; use TF_CONFIG with the addresses of the "
        "workers");
  }
  const auto meeting = tutti::make_communicator(
      Group{.world_size = num_workers(),
            .first_rank = worker_,
            .local_devices = {Device{}},
            .transport = mpi_transport({.name = "control", .timeout = options.join_timeout})},
      {.timeout = options.join_timeout});
  plane_ = connect_job(tasks_, *meeting, join_options(options));
  if (plane_.client && !alarm_->watch(transport_, 0)) {
    fail(ErrorCode::kUnavailable,
         "workers: another worker was lost while the workers were connecting");
  }
  log_info(concat("workers: rank ", worker_, " of ", num_workers(), ": all connections use MPI"));
}

bool WorkerGroup::has_addresses() const {
  return std::ranges::none_of(tasks_, [](const MemberTask& task) { return task.address.empty(); });
}

JoinOptions WorkerGroup::join_options(const WorkerGroupOptions& options) const {
  JoinOptions join = options.join;
  // A step may take a long time; collectives have their own deadlines.
  join.health.abort_stuck_after =
      std::max<Duration>(join.health.abort_stuck_after, durations::kLongestStep);
  join.client.timeout = options.join_timeout;
  join.client.progress = progress_;
  join.client.on_verdict = [alarm = alarm_, tasks = tasks_,
                            also_ends = options.ends_calls](const Verdict& verdict) {
    const bool ends = also_ends && also_ends(verdict);
    const auto is_its = [&](const MemberTask& own) { return own.same_task(verdict.who.task); };
    const bool is_own = !also_ends || verdict.number == 0 || std::ranges::any_of(tasks, is_its);
    if (ends || (is_own && verdict.is_fatal)) alarm->raise(verdict);
  };
  return join;
}

void WorkerGroup::join_job(const WorkerGroupOptions& options) {
  join_timeout_ = options.join_timeout;
  connect_ = connect_options(options, tasks_[static_cast<std::size_t>(worker_)].address);
  plane_ = tutti::join_job(tasks_, static_cast<std::size_t>(worker_), join_options(options));
  const Member self = plane_.client->self();
  strategy_ = ConnectedGroups::of_process().count(self);
  // A process can be a replacement only in its first strategy, because all workers create later
  // strategies at the same point of the program.
  is_replacement_ = !options.ends_calls && strategy_ == 0 && self.incarnation > 0 &&
                    plane_.client->get(kReadyKey).has_value();
  if (self.incarnation > 0) publish_state(kJoined);
  if (!is_replacement_) connect(deadline_after(Clock::system().now(), join_timeout_));
}

void WorkerGroup::connect(TimePoint deadline, bool goes_back) {
  for (;;) {
    wait_for_workers(deadline, goes_back);
    try {
      connect_generation(deadline);
      if (!alarm_->watch(transport_, generation_)) continue;
      if (!was_connected_) ConnectedGroups::of_process().add(plane_.client->self());
      was_connected_ = true;
      publish_state(kConnected);
      return;
    } catch (const Error& error) {
      // A worker that has not yet detected the loss of another worker may join later.
      const bool may_come = error.code() == ErrorCode::kDeadlineExceeded ||
                            error.code() == ErrorCode::kUnavailable ||
                            (error.code() == ErrorCode::kNotFound && was_connected_);
      if (!may_come || Clock::system().now() >= deadline) throw;
      log_warning(concat(tasks_[static_cast<std::size_t>(worker_)].to_string(), ": ",
                         error.message(), "; trying again"));
      Clock::system().sleep_for(durations::kTryAgain);
    }
  }
}

/// Waits until all workers have joined. Errors of the job are final, because a process that is not
/// a member of the job cannot rejoin.
void WorkerGroup::wait_for_workers(TimePoint deadline, bool goes_back) {
  try {
    if (goes_back) publish_state(kGoesBack);
    const bool is_start = strategy_ == 0 && plane_.client->self().incarnation == 0 && !goes_back;
    plane_.client->wait_for_members(deadline);
    while (!is_start && !all_are_in_this_strategy(deadline)) {
      plane_.client->wait_for_members(deadline);
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnavailable) throw;
    fail(ErrorCode::kFailedPrecondition, "workers: this process (",
         plane_.client->self().to_string(), ") cannot continue: ", error.message());
  }
}

void WorkerGroup::publish_state(std::string_view state) {
  plane_.client->set(concat(kStateKey, worker_),
                     concat(plane_.client->self().incarnation, " ", strategy_, " ", state));
}

std::vector<WorkerGroup::Peer> WorkerGroup::peers() {
  std::vector<Peer> peers;
  for (const Member& member : plane_.client->members()) {
    const auto is_it = [&](const MemberTask& task) { return task.same_task(member.task); };
    const auto task = std::ranges::find_if(tasks_, is_it);
    if (!member.is_here || task == tasks_.end() || task - tasks_.begin() == worker_) continue;
    Peer& peer = peers.emplace_back(Peer{member, {}, {}});
    std::istringstream text(
        plane_.client->get(concat(kStateKey, task - tasks_.begin())).value_or(""));
    std::uint64_t incarnation = 0;
    int strategy = 0;
    std::string state;
    if (!(text >> incarnation >> strategy >> state) || incarnation != member.incarnation) continue;
    peer.strategy = strategy;
    peer.state = state;
  }
  return peers;
}

/// Returns true if all workers are in this process's strategy; all workers create the same
/// strategies in sequence. A worker in an earlier strategy is either still connected and about to
/// leave it, or was restarted and can never reach this strategy.
bool WorkerGroup::all_are_in_this_strategy(TimePoint deadline) {
  std::vector<std::string> ahead;
  bool has_unknown = false;
  for (const Peer& peer : peers()) {
    has_unknown |= !peer.strategy && peer.member.incarnation > 0;
    if (peer.strategy > strategy_) ahead.push_back(peer.member.to_string());
    if (peer.strategy.value_or(strategy_) < strategy_ && peer.state != kConnected) {
      fail(ErrorCode::kFailedPrecondition, "workers: ", peer.member.to_string(),
           " has returned to strategy number ", *peer.strategy + 1,
           " of the program; expected number ", strategy_ + 1,
           ", as in this process; restart this process too (tutti run --max-restarts does so)");
    }
  }
  if (!ahead.empty()) {
    wait_for_exit(ahead, deadline);
  } else if (has_unknown) {  // a restarted worker has not published its state yet
    Clock::system().sleep_for(durations::kTryAgain);
    return Clock::system().now() >= deadline;  // connect() then names the missing workers
  }
  return ahead.empty() && !has_unknown;
}

/// Sleeps briefly, after logging a line on the first call. Throws at the deadline.
void WorkerGroup::wait_for_exit(const std::vector<std::string>& names, TimePoint deadline) {
  const std::string self = tasks_[static_cast<std::size_t>(worker_)].to_string();
  if (Clock::system().now() >= deadline) {
    fail(ErrorCode::kDeadlineExceeded, "workers: ", self, ": expected ", tutti::join(names),
         " to exit and restart together with this process, but they did not exit in time; call "
         "Recovery::run() around the training loop");
  }
  if (!std::exchange(has_logged_wait_, true)) {
    log_warning(concat("workers: ", self, " is waiting for ", tutti::join(names),
                       " to exit; then all processes restart together"));
  }
  Clock::system().sleep_for(durations::kTryAgain);
}

void WorkerGroup::connect_generation(TimePoint deadline) {
  alarm_->settle();
  transport_.reset();
  const auto interruption = std::make_shared<Interruption>();
  generation_ = alarm_->begin(interruption);
  const TimePoint now = Clock::system().now();
  ConnectOptions connect = connect_;
  connect.timeout = std::min<Duration>(deadline - now, std::chrono::seconds(10));
  connect.key_prefix = concat("workers/", generation_);
  connect.secret = plane_.secret;
  connect.job_id = plane_.job_id;
  connect.interruption = interruption;
  ConnectedRanks connected = connect_ranks(worker_, num_workers(), *plane_.client, connect);
  transport_ = std::move(connected.transport);
  log_info(concat("workers: ", connected.line));
}

bool WorkerGroup::may_reconnect(const Error& error, Duration patience) const {
  if (!has_addresses()) return false;  // no process can rejoin an MPI job, so the error is final
  const TimePoint deadline = deadline_after(Clock::system().now(), patience);
  // A broken connection may be the first symptom of a process's death, which the job detects within
  // 250 ms. Waits twice as long, so that one failure does not count as two on a busy machine.
  std::optional<Verdict> verdict =
      alarm_->verdict(std::min(patience, 2 * durations::kHeartbeatEvery));
  if (!verdict) {
    report_lost_peer(error);
    verdict = alarm_->verdict(std::max(deadline - Clock::system().now(), Duration::zero()));
  }
  // A worker's own failure and mismatched calls would recur after a reconnect, so they do not cause
  // a reconnect.
  return verdict && verdict->kind != VerdictKind::kFailed &&
         verdict->code != ErrorCode::kInvalidArgument;
}

/// Reports a broken connection to the job, because the other workers wait in collectives and cannot
/// detect it.
void WorkerGroup::report_lost_peer(const Error& error) const {
  const std::optional<int> peer = transport_ ? transport_->lost_peer() : std::nullopt;
  if (!peer) return;
  try {
    plane_.client->report_disconnection(tasks_.at(static_cast<std::size_t>(*peer)), generation_,
                                        error.message());
  } catch (const Error& unheard) {
    log_warning(concat(tasks_[static_cast<std::size_t>(worker_)].to_string(),
                       ": cannot report to the job that the connection to ", name_of(*peer),
                       " broke: ", unheard.message()));
  }
}

void WorkerGroup::reconnect(TimePoint deadline) {
  progress_->remove_ended();
  if (!has_addresses()) {
    fail(ErrorCode::kFailedPrecondition,
         "workers: expected workers with addresses, got MPI, which cannot reconnect processes; use "
         "tutti run");
  }
  connect(deadline, true);
  is_replacement_ = false;
}

bool WorkerGroup::restart() {
  const TimePoint deadline = deadline_after(Clock::system().now(), join_timeout_);
  for (;;) {
    std::vector<std::string> of_before;
    for (const Peer& peer : peers()) {
      const bool is_ahead = peer.strategy && *peer.strategy > strategy_;
      if (!is_ahead && peer.state == kGoesBack) return false;
      if (is_ahead || peer.state == kConnected) of_before.push_back(peer.member.to_string());
    }
    if (of_before.empty()) break;
    wait_for_exit(of_before, deadline);
  }
  connect(deadline);
  is_replacement_ = false;
  return true;
}

std::shared_ptr<void> WorkerGroup::watch(const Communicator& communicator,
                                         const std::string& name) {
  // Call counters restart with each connection, so the group's name contains the generation.
  const std::string group = concat(name, "/", generation_);
  progress_->watch(group, [&communicator] { return group_progress(communicator.progress()); });
  return std::shared_ptr<void>(nullptr,
                               [board = progress_, group](void*) { board->watch(group, {}); });
}

void WorkerGroup::when_lost(std::function<void(const Error&)> action) {
  alarm_->set_action(std::move(action));
}

void WorkerGroup::set_step(std::uint64_t step) { progress_->set_step(step); }

void WorkerGroup::remember(const std::string& key, std::string_view value) {
  // Only the first strategy needs the key, because a replacement process always begins with the
  // first strategy.
  if (!plane_.client || worker_ != 0 || strategy_ > 0) return;
  plane_.client->set(key, value);
  plane_.client->set(kReadyKey, "yes");
}

std::string WorkerGroup::remembered(const std::string& key) {
  return plane_.client->wait(key, deadline_after(Clock::system().now(), std::chrono::seconds(10)));
}

WorkerGroup::~WorkerGroup() {
  alarm_->settle();
  transport_.reset();
  plane_.client.reset();
  plane_.server.reset();
}

std::string WorkerGroup::name_of(int worker) const {
  return tasks_.at(static_cast<std::size_t>(worker)).to_string();
}

std::unique_ptr<Communicator> WorkerGroup::make_communicator(const CommunicatorOptions& options) {
  if (num_workers() == 1) return std::move(in_process_communicators(1, options).front());
  // The group owns the store, and its communicators do not outlive the group.
  const std::shared_ptr<KeyValueStore> store(std::shared_ptr<void>(), plane_.client.get());
  return tutti::make_communicator(Group{.world_size = num_workers(),
                                        .first_rank = worker_,
                                        .local_devices = {Device{}},
                                        .store = store,
                                        .transport = transport_},
                                  options);
}

std::shared_ptr<Communicator> communicator_from_environment(const CommunicatorOptions& options) {
  struct JobMembers {  // these data members are destroyed in reverse order
    ~JobMembers() {
      if (workers && workers->control()) workers->control()->report_unwinding();
    }
    std::shared_ptr<WorkerGroup> workers;
    std::unique_ptr<Communicator> communicator;
    std::shared_ptr<void> watch;
  };
  const auto job = std::make_shared<JobMembers>();
  job->workers = WorkerGroup::join(*resolver_from_environment());
  job->communicator = job->workers->make_communicator(options);
  if (job->workers->control()) job->watch = job->workers->watch(*job->communicator, "program");
  return {job, job->communicator.get()};
}

}  // namespace tutti
