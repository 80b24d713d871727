// Which engine a communicator's name stands for.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/collective_engine.h"
#include "tutti/cross_device_ops/communicator.h"
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

}  // namespace tutti
