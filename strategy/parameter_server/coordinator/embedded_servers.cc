// Each life is a store of its own: calls that a former one still works on change nothing here.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/coordinator/embedded_servers.h"

#include <algorithm>
#include <utility>

#include "tutti/strategy/parameter_server/coordinator/closure_error.h"

namespace tutti::internal {
namespace {

class NoAnswers final : public PendingAnswers {
 public:
  explicit NoAnswers(std::string why) : why_(std::move(why)) {}
  bool is_ready() const override { return true; }
  std::vector<OperationAnswer> wait(TimePoint) override {
    throw OriginError(ErrorOrigin::kServer, ErrorCode::kUnavailable, why_);
  }

 private:
  const std::string why_;
};

/// Restarts that versions of this state come from, at least (see VariableStore).
std::uint64_t incarnation_of(const StoreSnapshot& state) {
  std::uint64_t incarnation = 0;
  for (const ShardSnapshot& each : state.shards) {
    incarnation = std::max(incarnation, each.version >> 32);
  }
  return incarnation;
}

}  // namespace

EmbeddedServer::EmbeddedServer(int server)
    : name_(concat("ps ", server)), life_(std::make_shared<VariableStore>(name_)) {}

std::shared_ptr<VariableStore> EmbeddedServer::life() const {
  const MutexLock lock(mutex_);
  return life_;
}

std::shared_ptr<PendingAnswers> EmbeddedServer::start(OperationBatch batch) {
  if (const auto store = life()) return store->start(std::move(batch));
  return std::make_shared<NoAnswers>(concat(name_, ": ", why_dead().value_or("was not there")));
}

void EmbeddedServer::kill(const std::string& why) {
  std::shared_ptr<VariableStore> ended;  // destroyed without the lock
  const MutexLock lock(mutex_);
  if (life_ == nullptr) return;
  ended.swap(life_);
  why_dead_ = why;
}

std::optional<std::string> EmbeddedServer::why_dead() const {
  const MutexLock lock(mutex_);
  if (life_ != nullptr) return std::nullopt;
  return why_dead_;
}

std::shared_ptr<VariableStore> EmbeddedServer::require_life() const {
  if (auto store = life()) return store;
  fail(ErrorCode::kUnavailable, name_, ": ", why_dead().value_or("was not there"));
}

StoreSnapshot EmbeddedServer::snapshot() const { return require_life()->snapshot(); }

void EmbeddedServer::fence(std::uint64_t term) const { require_life()->fence(term); }

void EmbeddedServer::check_knows_all(const StoreSnapshot& state) const {
  if (const auto store = life()) check_has_all(name_, *store, state);
}

void EmbeddedServer::live_on(const StoreSnapshot& state) {
  std::shared_ptr<VariableStore> former;  // destroyed without the lock
  const MutexLock lock(mutex_);
  incarnation_ = std::max(incarnation_, incarnation_of(state)) + 1;
  auto next = std::make_shared<VariableStore>(name_, incarnation_);
  next->restore(state);
  former = std::exchange(life_, std::move(next));
}

EmbeddedServers::EmbeddedServers(int count) {
  for (int i = 0; i < count; ++i) servers_.push_back(std::make_shared<EmbeddedServer>(i));
}

std::vector<std::shared_ptr<VariableService>> EmbeddedServers::services() const {
  return {servers_.begin(), servers_.end()};
}

void EmbeddedServers::kill(int server, const std::string& why) {
  servers_.at(static_cast<std::size_t>(server))->kill(why);
  const MutexLock lock(mutex_);
  if (on_loss_) on_loss_();
}

void EmbeddedServers::when_back(std::function<void()> told) {
  const MutexLock lock(mutex_);
  when_back_ = std::move(told);
}

void EmbeddedServers::keep_in(const std::string& folder, const std::string& job_id) {
  const int count = static_cast<int>(servers_.size());
  std::vector<std::unique_ptr<SnapshotFolder>> folders;
  for (int i = 0; i < count; ++i) {
    folders.push_back(std::make_unique<SnapshotFolder>(folder, job_id, i, count));
  }
  folders_ = std::move(folders);
}

void EmbeddedServers::require_state() {
  if (const auto who = lost()) {
    fail(ErrorCode::kUnavailable, "ClusterCoordinator::start: ", *who, "; its variables are gone, ",
         "and must not be saved as the first of another folder; try the folder of before");
  }
}

void EmbeddedServers::save(std::uint64_t cut, std::uint64_t term, std::uint64_t keep) {
  for (std::size_t i = 0; i < servers_.size(); ++i) {
    folders_[i]->save(cut, term, servers_[i]->snapshot(), keep);
  }
}

void EmbeddedServers::go_back(std::uint64_t cut, std::uint64_t term) {
  std::vector<StoreSnapshot> states;
  for (std::size_t i = 0; i < servers_.size(); ++i) {
    states.push_back(folders_[i]->load(cut).snapshot);
    servers_[i]->check_knows_all(states.back());
    ChangeIdentity fence;
    fence.term = term;
    states.back().table.note_applied(fence);
  }
  for (std::size_t i = 0; i < servers_.size(); ++i) servers_[i]->live_on(states[i]);
  const MutexLock lock(mutex_);
  if (when_back_) when_back_();
}

void EmbeddedServers::fence(std::uint64_t term) {
  for (const auto& server : servers_) server->fence(term);
}

std::optional<std::string> EmbeddedServers::lost() const {
  for (const auto& server : servers_) {
    if (const auto why = server->why_dead()) return concat(server->name(), ": ", *why);
  }
  return std::nullopt;
}

void EmbeddedServers::watch(std::function<void()> on_loss) {
  const MutexLock lock(mutex_);
  on_loss_ = std::move(on_loss);
}

}  // namespace tutti::internal
