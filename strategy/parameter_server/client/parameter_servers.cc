// Implements ParameterServers: batched reads of variables, and a cache of current values.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/client/parameter_servers.h"
#include "tutti/core/random.h"

#include <algorithm>
#include <utility>

#include "tutti/autograd/gradient_tape.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/clock.h"
#include "tutti/core/logging.h"
#include "tutti/optimizer/update_rule_spec.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti::internal {
namespace {

Tensor joined(const std::vector<Tensor>& shards) {
  if (shards.size() == 1) return shards.front();
  const GradientTape::StopRecording stop;
  const NoDeviceScope on_the_host;  // on the host, because all replicas share the result
  return concat(std::span<const Tensor>(shards), 0);
}

std::size_t bytes_of(const ShardSpec& spec) {
  return static_cast<std::size_t>(spec.shape().num_elements()) * size_of(spec.dtype);
}

std::vector<std::unique_ptr<ServerLink>> links_to(
    std::vector<std::shared_ptr<VariableService>> services, std::uint64_t client) {
  std::vector<std::unique_ptr<ServerLink>> links;
  for (auto& service : services) {
    links.push_back(std::make_unique<ServerLink>(std::move(service), client));
  }
  return links;
}

/// Result of fetching one variable.
struct Fetched {
  std::shared_ptr<ReadCache> cache;
  std::vector<Tensor> values;
  std::vector<std::uint64_t> versions;
  std::vector<std::uint64_t> num_steps;
  bool is_new = false;
};
struct Wanted {
  Fetched* variable;
  std::size_t shard;
};

}  // namespace

SharedText ParameterServers::rule_text(const UpdateRule& rule) {
  constexpr std::size_t kMostTexts = 16;  // enough: an optimizer has at most three rules
  const MutexLock lock(mutex_);
  const auto known = rule_texts_.find(rule.number());
  if (known != rule_texts_.end()) return known->second;
  if (rule_texts_.size() == kMostTexts) rule_texts_.clear();
  return rule_texts_.emplace(rule.number(), describe_update_rule(rule)).first->second;
}

ParameterServers::ParameterServers(std::vector<std::shared_ptr<VariableService>> services,
                                   Duration timeout, std::shared_ptr<WorkerTeam> team)
    : client_(new_run_nonce()),
      links_(links_to(std::move(services), client_)),
      timeout_(timeout),
      team_(std::move(team)) {}

ParameterServers::ParameterServers(std::vector<std::shared_ptr<VariableService>> services,
                                   Duration timeout, const WorkerPace& pace)
    : client_(new_run_nonce()),
      links_(links_to(std::move(services), client_)),
      timeout_(timeout),
      pace_(pace) {
  if (pace.mode != UpdateMode::kSyncReplicas) return;
  replica_steps_ =
      std::make_unique<ReplicaSteps>(pace.worker, pace.num_workers, pace.num_to_aggregate);
}

TimePoint ParameterServers::deadline() const {
  return deadline_after(Clock::system().now(), timeout_);
}

TimePoint ParameterServers::read_deadline() const {
  const Duration longest = pace_ ? std::max(timeout_, pace_->patience) : timeout_;
  return deadline_after(Clock::system().now(), longest);
}

std::string ParameterServers::unique_name(const std::string& name) {
  MutexLock lock(mutex_);
  const int number = ++num_of_name_[name];
  return number == 1 ? name : concat(name, "#", number);
}

void ParameterServers::begin_step() {
  bool is_first = false;
  {
    MutexLock lock(mutex_);
    is_first = replica_steps_ != nullptr && !has_joined_;
  }
  if (is_first) from_server([this] { report(/*has_ended=*/false, deadline()); });
  MutexLock lock(mutex_);
  has_joined_ = has_joined_ || is_first;
  ++epoch_;
  if (num_steps_++ > 0) return;
  usual_ = std::exchange(read_, {});
  if (replica_steps_) replica_steps_->begin_step();
}

/// Reports to all servers that this worker is starting or has finished.
void ParameterServers::report(bool has_ended, TimePoint deadline) {
  std::vector<std::shared_ptr<PendingAnswers>> pending;
  for (const auto& each : links_) {
    pending.push_back(each->read({Operation(ReportWorker{pace_->worker, has_ended})}));
  }
  for (const auto& each : pending) (void)each->wait(deadline);
}

void ParameterServers::leave() noexcept {
  {
    MutexLock lock(mutex_);
    if (!std::exchange(has_joined_, false)) return;
  }
  try {
    // Waits only briefly, because this worker has finished.
    report(/*has_ended=*/true, deadline_after(Clock::system().now(), durations::kSilentAfter));
  } catch (const std::exception& error) {
    log_info(concat("worker ", pace_->worker,
                    ": could not report to the servers that it has finished: ", error.what()));
  }
}

void ParameterServers::end_step() {
  MutexLock lock(mutex_);
  --num_steps_;
}

bool ParameterServers::is_fresh(const ReadCache& cache) const {
  return num_steps_ > 0 && cache.epoch == epoch_;
}

/// Returns the caches to fetch: `cache` and, within a step, those that the last step read and that
/// are not fresh.
ParameterServers::Caches ParameterServers::wanted(const std::shared_ptr<ReadCache>& cache) {
  Caches caches{cache};
  if (num_steps_ == 0) return caches;
  for (const auto& each : usual_) {
    if (each != cache && !is_fresh(*each)) caches.push_back(each);
  }
  return caches;
}

void ParameterServers::set_currency(Currency currency) {
  const MutexLock lock(currency_mutex_);
  currency_ = std::move(currency);
}

std::uint64_t ParameterServers::wait_until_current() {
  if (ClosureContext::current() != nullptr) return 0;
  const MutexLock lock(currency_mutex_);
  return currency_ ? currency_() : 0;
}

Tensor ParameterServers::read_current(const std::function<Tensor()>& read) {
  for (;;) {
    const std::uint64_t before = wait_until_current();
    try {
      Tensor value = read();
      if (wait_until_current() == before) return value;
    } catch (const OriginError& error) {
      if (error.origin() != ErrorOrigin::kServer || wait_until_current() == before) throw;
    }
    forget_reads();
  }
}

std::vector<RemoteShard> ParameterServers::shards() {
  const MutexLock lock(mutex_);
  return made_;
}

void ParameterServers::note_made(const std::vector<RemoteShard>& shards) {
  note_outside_change();
  const MutexLock lock(mutex_);
  made_.insert(made_.end(), shards.begin(), shards.end());
}

Tensor ParameterServers::read_once(const std::shared_ptr<ReadCache>& cache) {
  Caches caches;
  {
    MutexLock lock(mutex_);
    const bool in_step = num_steps_ > 0;
    if (in_step) read_.insert(cache);
    const auto is_free = [this]() TUTTI_REQUIRES(mutex_) { return !is_fetching_; };
    if (!fetched_.wait_until(mutex_, read_deadline(), is_free)) {
      fail(ErrorCode::kDeadlineExceeded, "ParameterServers::read: timed out, because another ",
           "thread's read from the servers was not answered; check the servers");
    }
    if (is_fresh(*cache)) return cache->whole;
    caches = wanted(cache);
    is_fetching_ = true;
  }
  const auto end_fetching = [this] {
    MutexLock lock(mutex_);
    is_fetching_ = false;
    fetched_.notify_all();
  };
  try {
    fetch(caches);
  } catch (...) {
    end_fetching();
    throw;
  }
  end_fetching();
  MutexLock lock(mutex_);
  return cache->whole;
}

void ParameterServers::note_read(const std::shared_ptr<ReadCache>& cache,
                                 std::span<const OperationAnswer> answers) {
  MutexLock lock(mutex_);
  if (num_steps_ == 0 || !replica_steps_) return;
  for (const OperationAnswer& each : answers) replica_steps_->note_rows(cache, each.num_steps);
}

std::uint64_t ParameterServers::steps_to_wait_for(const std::shared_ptr<ReadCache>& cache) {
  MutexLock lock(mutex_);
  return replica_steps_ ? replica_steps_->at_least(cache) : 0;
}

std::optional<SyncSpec> ParameterServers::assign_step(const std::shared_ptr<ReadCache>& cache) {
  MutexLock lock(mutex_);
  return replica_steps_->assign_step(cache);
}

std::vector<OperationAnswer> ParameterServers::wait_for_read(int server, PendingAnswers& pending) {
  try {
    return pending.wait(read_deadline());
  } catch (const Error& error) {
    if (replica_steps_ && error.code() == ErrorCode::kDeadlineExceeded) {
      fail_if_workers_are_missing(server, error);
    }
    if (!is_of_infrastructure(error.code())) throw;
    throw OriginError(ErrorOrigin::kServer, error.code(), error.message());
  }
}

/// Given the timeout `error` of a read, throws an error that names the missing workers, if there
/// are any.
void ParameterServers::fail_if_workers_are_missing(int server, const Error& error) {
  const auto answer = link(server).read({Operation(ReadAwaited{})})->wait(deadline()).front();
  std::vector<std::int64_t> missing;
  for (const std::int64_t worker : answer.value->host_span<std::int64_t>()) {
    if (worker != pace_->worker) missing.push_back(worker);
  }
  if (missing.empty()) return;
  fail(ErrorCode::kDeadlineExceeded, error.message(), ": worker ", pace_->worker,
       " is waiting to read the next step, for which ",
       missing.size() == 1 ? "worker " : "workers ", join(missing),
       " sent no gradient; expected gradients from ", pace_->num_to_aggregate, " of ",
       pace_->num_workers, " workers for each step; is one of them stopped or stuck? ",
       "Set a larger local.timeout to wait longer");
}

/// Fetches values. If the servers sum gradients, repeats the fetch until all values belong to one
/// step, because a step may end between two reads.
void ParameterServers::fetch(const Caches& caches) {
  const TimePoint end = read_deadline();
  std::optional<std::uint64_t> at_least = 0;
  while (at_least) {
    fetch_once(caches, *at_least);
    MutexLock lock(mutex_);
    at_least = replica_steps_ && num_steps_ > 0 ? replica_steps_->is_behind(caches) : std::nullopt;
    if (Clock::system().now() > end)
      return;  // values are from different steps; gradients will be dropped
  }
}

void ParameterServers::fetch_once(const Caches& caches, std::uint64_t at_least_steps) {
  std::uint64_t epoch = 0;
  std::vector<Fetched> fetched;
  std::vector<std::uint64_t> at_least;
  {
    MutexLock lock(mutex_);
    epoch = epoch_;
    for (const auto& cache : caches) {
      const std::uint64_t own = replica_steps_ ? replica_steps_->at_least(cache) : 0;
      at_least.push_back(own == 0 ? 0 : std::max(own, at_least_steps));
      fetched.push_back({cache, cache->values, cache->versions,
                         std::vector<std::uint64_t>(cache->shards.size(), 0)});
    }
  }
  std::vector<std::vector<Operation>> reads(links_.size());
  std::vector<std::vector<std::size_t>> answer_bytes(links_.size());
  std::vector<std::vector<Wanted>> wanted(links_.size());
  for (std::size_t v = 0; v < fetched.size(); ++v) {
    Fetched& each = fetched[v];
    for (std::size_t i = 0; i < each.cache->shards.size(); ++i) {
      const auto server = static_cast<std::size_t>(each.cache->shards[i].server);
      reads[server].push_back(ReadShard{each.cache->shards[i].id, each.versions[i], at_least[v]});
      answer_bytes[server].push_back(bytes_of(each.cache->shards[i].spec));
      wanted[server].push_back({&each, i});
    }
  }
  std::vector<std::shared_ptr<PendingAnswers>> pending(links_.size());
  for (std::size_t s = 0; s < links_.size(); ++s) {
    if (!reads[s].empty()) pending[s] = links_[s]->read(std::move(reads[s]), answer_bytes[s]);
  }
  for (std::size_t s = 0; s < links_.size(); ++s) {
    if (!pending[s]) continue;
    const std::vector<OperationAnswer> answers = wait_for_read(static_cast<int>(s), *pending[s]);
    for (std::size_t i = 0; i < answers.size(); ++i) {
      Fetched& variable = *wanted[s][i].variable;
      variable.num_steps[wanted[s][i].shard] = answers[i].num_steps;
      if (!answers[i].value) continue;
      variable.values[wanted[s][i].shard] = *answers[i].value;
      variable.versions[wanted[s][i].shard] = answers[i].version;
      variable.is_new = true;
    }
  }
  for (Fetched& each : fetched) {
    const Tensor whole = each.is_new ? joined(each.values) : Tensor();
    MutexLock lock(mutex_);
    if (each.is_new) each.cache->whole = whole;
    each.cache->values = std::move(each.values);
    each.cache->versions = std::move(each.versions);
    each.cache->epoch = epoch;
    if (replica_steps_) replica_steps_->note_read(each.cache, each.num_steps);
  }
}

/// Adds the change before invalidating the cache, so that values fetched in between are not
/// mistaken for current ones.
void ParameterServers::change(int server, Operation operation) {
  if (guard_) guard_();
  // Record the change both before and after making it, because a checkpoint taken in between may or
  // may not contain it.
  const bool is_outside = ClosureContext::current() == nullptr;
  if (is_outside) note_outside_change();
  link(server).change(std::move(operation));
  if (is_outside) note_outside_change();
  forget_reads();
}

void ParameterServers::forget_reads() {
  MutexLock lock(mutex_);
  ++epoch_;
}

bool ParameterServers::is_in_step() {
  MutexLock lock(mutex_);
  return num_steps_ > 0;
}

void ParameterServers::change_together(const std::function<void()>& change,
                                       const std::string& what) {
  if (!team_ || team_->worker() == 0) change();
  if (team_) return meet(what);
  if (!is_in_step()) settle();
}

void ParameterServers::meet(const std::string& what) {
  settle();
  if (team_) (void)team_->gather_texts("", what);
  forget_reads();
}

void ParameterServers::settle() {
  for (const auto& each : links_) each->send_changes();
  from_server([&] {
    for (const auto& each : links_) each->settle(deadline());
  });
}

void ParameterServers::restart() {
  const std::uint64_t client = new_run_nonce();
  for (const auto& each : links_) each->restart(client);
  forget_reads();
}

void ParameterServers::end_stream() {
  for (const auto& each : links_) each->end_stream();
}

}  // namespace tutti::internal
