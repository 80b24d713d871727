// Server processes with one number, w, in which tests count.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "tests/strategy/parameter_server/durable_process_kit.h"

namespace tutti::durable_tests {

inline internal::ShardSpec spec_of_w() { return store_tests::whole("w", {}, DType::kInt64); }

inline void make_w(internal::VariableService& service) {
  store_tests::Client client(service, 1);
  client.call({internal::CreateShard{spec_of_w(), Tensor::scalar(0, DType::kInt64)}});
}

/// Sets a job up: w on each server, in cut 1, and closures of term 1 may come. The services of
/// the servers.
inline std::vector<std::shared_ptr<internal::VariableService>> begin_with_w(
    const ServerProcesses& processes, internal::RemoteServers& group, const OwnFolder& folder) {
  group.wait_for_all(store_tests::soon());
  auto services = processes.services();
  for (const auto& each : services) make_w(*each);
  group.keep_in(folder.path(), "job");
  group.save(1, 1, 0);
  group.fence(1);
  return services;
}

inline void wait_until_lost(const internal::RemoteServers& group) {
  while (!group.lost()) Clock::system().sleep_for(1ms);
}

}  // namespace tutti::durable_tests
