// Reading many variables at once, and knowing what is still the present value.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/client/parameter_servers.h"

#include <cstring>
#include <utility>

#include "tutti/autograd/gradient_tape.h"
#include "tutti/cluster/handshake/hello.h"
#include "tutti/core/clock.h"
#include "tutti/strategy/parameter_server/coordinator/closure_error.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti::internal {
namespace {

/// Whether the server or the way to it failed, and not what was asked.
bool is_of_infrastructure(ErrorCode code) {
  return code == ErrorCode::kUnavailable || code == ErrorCode::kDeadlineExceeded ||
         code == ErrorCode::kDataLoss;
}

/// Calls `wait`; failures of servers say so.
template <class Wait>
auto from_server(const Wait& wait) {
  try {
    return wait();
  } catch (const Error& error) {
    if (!is_of_infrastructure(error.code())) throw;
    throw OriginError(ErrorOrigin::kServer, error.code(), error.message());
  }
}

/// Unlike that of any other process, as the number of a new connection is.
std::uint64_t new_client_number() {
  const PeerHello hello = make_hello(ConnectionPurpose::kRpc, "worker", 0);
  std::uint64_t number = 0;
  std::memcpy(&number, hello.nonce.data(), sizeof(number));
  return number;
}

Tensor joined(const std::vector<Tensor>& shards) {
  if (shards.size() == 1) return shards.front();
  const GradientTape::StopRecording stop;
  return concat(std::span<const Tensor>(shards), 0);
}

/// What comes of a fetch of one variable.
struct Fetched {
  std::shared_ptr<ReadCache> cache;
  std::vector<Tensor> values;
  std::vector<std::uint64_t> versions;
  bool is_new = false;
};
struct Wanted {
  Fetched* variable;
  std::size_t shard;
};

}  // namespace

ParameterServers::ParameterServers(std::vector<std::shared_ptr<VariableService>> services,
                                   Duration timeout, std::shared_ptr<WorkerTeam> team)
    : timeout_(timeout), team_(std::move(team)) {
  const std::uint64_t client = new_client_number();
  for (auto& service : services) {
    links_.push_back(std::make_unique<ServerLink>(std::move(service), client));
  }
}

TimePoint ParameterServers::deadline() const {
  return deadline_after(Clock::system().now(), timeout_);
}

std::string ParameterServers::unique_name(const std::string& name) {
  MutexLock lock(mutex_);
  const int number = ++num_of_name_[name];
  return number == 1 ? name : concat(name, "#", number);
}

void ParameterServers::begin_step() {
  MutexLock lock(mutex_);
  ++epoch_;
  if (num_steps_++ == 0) usual_ = std::exchange(read_, {});
}

void ParameterServers::end_step() {
  MutexLock lock(mutex_);
  --num_steps_;
}

bool ParameterServers::is_fresh(const ReadCache& cache) const {
  return num_steps_ > 0 && cache.epoch == epoch_;
}

/// Within a step also what the last one read, if it is not fresh.
ParameterServers::Caches ParameterServers::wanted(const std::shared_ptr<ReadCache>& cache) {
  Caches caches{cache};
  if (num_steps_ == 0) return caches;
  for (const auto& each : usual_) {
    if (each != cache && !is_fresh(*each)) caches.push_back(each);
  }
  return caches;
}

Tensor ParameterServers::read(const std::shared_ptr<ReadCache>& cache) {
  Caches caches;
  {
    MutexLock lock(mutex_);
    const bool in_step = num_steps_ > 0;
    if (in_step) read_.insert(cache);
    const auto is_free = [this]() TUTTI_REQUIRES(mutex_) { return !is_fetching_; };
    if (!fetched_.wait_until(mutex_, deadline(), is_free)) {
      fail(ErrorCode::kDeadlineExceeded, "ParameterServers::read: another thread has waited for ",
           "the servers all the time");
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

void ParameterServers::fetch(const Caches& caches) {
  std::uint64_t epoch = 0;
  std::vector<Fetched> fetched;
  {
    MutexLock lock(mutex_);
    epoch = epoch_;
    for (const auto& cache : caches) fetched.push_back({cache, cache->values, cache->versions});
  }
  std::vector<std::vector<Operation>> reads(links_.size());
  std::vector<std::vector<Wanted>> wanted(links_.size());
  for (Fetched& each : fetched) {
    for (std::size_t i = 0; i < each.cache->shards.size(); ++i) {
      const auto server = static_cast<std::size_t>(each.cache->shards[i].server);
      reads[server].push_back(ReadShard{each.cache->shards[i].spec.id(), each.versions[i], 0});
      wanted[server].push_back({&each, i});
    }
  }
  std::vector<std::shared_ptr<PendingAnswers>> pending(links_.size());
  for (std::size_t s = 0; s < links_.size(); ++s) {
    if (!reads[s].empty()) pending[s] = links_[s]->read(std::move(reads[s]));
  }
  for (std::size_t s = 0; s < links_.size(); ++s) {
    if (!pending[s]) continue;
    const std::vector<OperationAnswer> answers =
        from_server([&] { return pending[s]->wait(deadline()); });
    for (std::size_t i = 0; i < answers.size(); ++i) {
      if (!answers[i].value) continue;
      Fetched& variable = *wanted[s][i].variable;
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
  }
}

/// The change is noted first: a fetch in between sends it, and counts as older.
void ParameterServers::change(int server, Operation operation) {
  if (guard_) guard_();
  link(server).change(std::move(operation));
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

void ParameterServers::begin_anew() {
  const std::uint64_t client = new_client_number();
  for (const auto& each : links_) each->begin_anew(client);
  forget_reads();
}

void ParameterServers::end_stream() {
  for (const auto& each : links_) each->end_stream();
}

}  // namespace tutti::internal
