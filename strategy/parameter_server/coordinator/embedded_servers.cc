// What is loaded is a store of its own: calls that the former one still works on change nothing.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/coordinator/embedded_servers.h"

#include <utility>

#include "tutti/core/error.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

class EmbeddedServer final : public VariableService {
 public:
  explicit EmbeddedServer(int server)
      : name_(concat("ps ", server)), store_(std::make_shared<VariableStore>(name_)) {}
  std::string name() const override { return name_; }
  std::shared_ptr<PendingAnswers> start(OperationBatch batch) override {
    return store()->start(std::move(batch));
  }
  std::shared_ptr<VariableStore> store() const {
    const MutexLock lock(mutex_);
    return store_;
  }
  void go_on_with(std::shared_ptr<VariableStore> store) {
    const MutexLock lock(mutex_);
    store_.swap(store);  // the former one ends without the lock, at the latest
  }

 private:
  const std::string name_;
  mutable Mutex mutex_;
  std::shared_ptr<VariableStore> store_ TUTTI_GUARDED_BY(mutex_);
};

EmbeddedServers::EmbeddedServers(int count) {
  for (int i = 0; i < count; ++i) servers_.push_back(std::make_shared<EmbeddedServer>(i));
}

EmbeddedServers::~EmbeddedServers() = default;

std::vector<std::shared_ptr<VariableService>> EmbeddedServers::services() const {
  return {servers_.begin(), servers_.end()};
}

void EmbeddedServers::keep_in(const std::string& folder, const std::string& job_id) {
  if (!files_.empty() && job_id == job_id_) return;
  files_.clear();
  have_state_ = false;
  const int count = static_cast<int>(servers_.size());
  std::vector<std::unique_ptr<ServerFiles>> files;
  for (int i = 0; i < count; ++i) {
    files.push_back(std::make_unique<ServerFiles>(folder, job_id, i, count));
  }
  files_ = std::move(files);
  job_id_ = job_id;
}

void EmbeddedServers::save(std::uint64_t cut, std::uint64_t term, std::uint64_t keep) {
  for (std::size_t i = 0; i < servers_.size(); ++i) {
    files_[i]->save(*servers_[i]->store(), cut, term, keep);
  }
  have_state_ = true;
}

void EmbeddedServers::come_back(std::uint64_t cut, std::uint64_t term) {
  if (have_state_) return fence(term);
  std::vector<std::shared_ptr<VariableStore>> loaded;
  for (std::size_t i = 0; i < servers_.size(); ++i) {
    // Terms never come twice: neither do the versions that this state gives to its values.
    loaded.push_back(std::make_shared<VariableStore>(servers_[i]->name(), term));
    files_[i]->load(*loaded.back(), *servers_[i]->store(), cut, term);
  }
  for (std::size_t i = 0; i < servers_.size(); ++i) servers_[i]->go_on_with(loaded[i]);
  have_state_ = true;
  tell_loaded();
}

void EmbeddedServers::fence(std::uint64_t term) {
  for (const auto& server : servers_) server->store()->fence(term);
}

}  // namespace tutti::internal
