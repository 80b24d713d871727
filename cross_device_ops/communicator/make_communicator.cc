// Selects a communicator's engine by algorithm name.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/names.h"
#include "cross_device_ops/algorithms/native_call_engine.h"
#include "cross_device_ops/collective_engine.h"
#include "cross_device_ops/in_process/in_process_transport.h"
#include "tutti/core/executor.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti {
namespace {

using Communicators = std::vector<std::unique_ptr<Communicator>>;

// Constructs each rank's communicator on its own thread, because a plugin's constructor waits for
// the other ranks.
Communicators each_by_a_thread(const std::vector<Group>& groups,
                               const CommunicatorOptions& options) {
  Communicators communicators(groups.size());
  std::vector<std::exception_ptr> errors(groups.size());
  {
    std::vector<std::unique_ptr<Thread>> threads;
    for (std::size_t r = 0; r < groups.size(); ++r) {
      threads.push_back(Executor::system().start(concat("connect-", r), [&, r] {
        try {
          communicators[r] = make_communicator(groups[r], options);
        } catch (...) {
          errors[r] = std::current_exception();
        }
      }));
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return communicators;
}

}  // namespace

Communicators in_process_communicators(int size, const CommunicatorOptions& options) {
  internal::require(size > 0, "in_process_communicators: expected at least 1 rank, got ", size);
  const auto store = std::make_shared<InProcessStore>();
  std::vector<Group> groups;
  for (std::shared_ptr<Transport>& transport : in_process_transports(size)) {
    groups.push_back({.world_size = size,
                      .first_rank = transport->rank(),
                      .local_devices = {Device{}},
                      .store = store,
                      .transport = std::move(transport)});
  }
  return each_by_a_thread(groups, options);
}

std::unique_ptr<Communicator> make_communicator(std::shared_ptr<Transport> transport,
                                                const CommunicatorOptions& options) {
  if (options.algorithm == "canonical" && transport->host_memory()) {
    // This is the fastest engine for ranks on one host.
    return std::make_unique<Communicator>(internal::window_engine(std::move(transport)), options);
  }
  return std::make_unique<Communicator>(
      internal::message_engine(std::move(transport), options.algorithm), options);
}

std::unique_ptr<Communicator> make_communicator(const Group& group,
                                                const CommunicatorOptions& options) {
  internal::require(group.transport != nullptr, "make_communicator: ", options.algorithm,
                    " needs a connection to the other ranks; expected Group::transport, got none");
  const std::vector<std::string> names = internal::message_algorithms();
  if (std::ranges::find(names, options.algorithm) != names.end()) {
    return make_communicator(group.transport, options);
  }
  const TimePoint deadline = deadline_after(Clock::system().now(), options.timeout);
  if (options.algorithm == "mpi") {
    return std::make_unique<Communicator>(internal::mpi_engine(group, deadline), options);
  }
  const auto timeout = std::chrono::ceil<std::chrono::milliseconds>(options.timeout);
  return std::make_unique<Communicator>(
      internal::ops_engine(
          make_cross_device_ops(options.algorithm, {.timeout = timeout}, options.plugin_options),
          group, deadline),
      options);
}

}  // namespace tutti
