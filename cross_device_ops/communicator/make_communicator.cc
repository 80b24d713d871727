// Which engine a communicator's name stands for.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "tutti/cross_device_ops/algorithms/message_engine.h"
#include "tutti/cross_device_ops/collective_engine.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/cross_device_ops/plugin/ops_engine.h"
#include "tutti/cross_device_ops/shared/shared_engine.h"

namespace tutti {

std::vector<std::unique_ptr<Communicator>> in_process_communicators(
    int size, const CommunicatorOptions& options) {
  if (size < 1) {
    fail(ErrorCode::kInvalidArgument, "in_process_communicators: expected 1 rank or more, got ",
         size);
  }
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (std::unique_ptr<internal::CollectiveEngine>& engine : internal::shared_engines(size)) {
    communicators.push_back(std::make_unique<Communicator>(std::move(engine), options));
  }
  return communicators;
}

std::unique_ptr<Communicator> make_communicator(std::shared_ptr<Transport> transport,
                                                const CommunicatorOptions& options) {
  return std::make_unique<Communicator>(
      internal::message_engine(std::move(transport), options.algorithm), options);
}

std::unique_ptr<Communicator> make_communicator(const Group& group,
                                                const CommunicatorOptions& options) {
  if (!group.transport) {
    fail(ErrorCode::kInvalidArgument, "make_communicator: ", options.algorithm,
         " needs a way to the other ranks; expected Group::transport, got none");
  }
  const std::vector<std::string> names = internal::message_algorithms();
  if (std::ranges::find(names, options.algorithm) != names.end()) {
    return make_communicator(group.transport, options);
  }
  const auto timeout = std::chrono::ceil<std::chrono::milliseconds>(options.timeout);
  return std::make_unique<Communicator>(
      internal::ops_engine(make_cross_device_ops(options.algorithm, {.timeout = timeout}), group,
                           deadline_after(Clock::system().now(), options.timeout)),
      options);
}

}  // namespace tutti
