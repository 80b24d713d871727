// A reduction on GPUs that runs beside what their compute streams do.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/pending_reduction.h"

#include <utility>

#include "tutti/cross_device_ops/gpu/device_work.h"

namespace tutti {

PendingReduction::PendingReduction() = default;
PendingReduction::~PendingReduction() = default;  // the works join
PendingReduction::PendingReduction(PendingReduction&&) noexcept = default;
PendingReduction& PendingReduction::operator=(PendingReduction&&) noexcept = default;

void PendingReduction::join() {
  const auto works = std::exchange(works_, {});
  const auto actions = std::exchange(actions_, {});
  for (const auto& work : works) work->join();
  for (const auto& action : actions) action();
}

void PendingReduction::add(std::unique_ptr<internal::DeviceWork> work) {
  works_.push_back(std::move(work));
}

void PendingReduction::after_join(std::function<void()> action) {
  actions_.push_back(std::move(action));
}

}  // namespace tutti
