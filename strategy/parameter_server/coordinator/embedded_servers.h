// Servers that are objects of the coordinator's process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "strategy/parameter_server/coordinator/server_group.h"
#include "strategy/parameter_server/server/server_files.h"

namespace tutti::internal {

class EmbeddedServer;

/// They live as long as their process: what outlives both is in the folder. Threads: any, all
/// functions.
class EmbeddedServers final : public ServerGroup {
 public:
  explicit EmbeddedServers(int count);
  ~EmbeddedServers() override;
  std::vector<std::shared_ptr<VariableService>> services() const;

  void keep_in(const std::string& folder, const std::string& job_id) override;
  void save(std::uint64_t cut, std::uint64_t term, std::uint64_t keep) override;
  void come_back(std::uint64_t cut, std::uint64_t term) override;
  void fence(std::uint64_t term) override;

 private:
  std::vector<std::shared_ptr<EmbeddedServer>> servers_;
  // Of the thread that gives orders.
  std::string job_id_;
  bool have_state_ = false;                          // of this job
  std::vector<std::unique_ptr<ServerFiles>> files_;  // by server; set by keep_in()
};

}  // namespace tutti::internal
