// The CUDA backend, for all GPUs that are visible to this process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "tensor/device_backend.h"

namespace tutti::cuda {

/// Backend that is created only if there is a GPU. Thread-safe.
class Backend final : public DeviceBackend {
 public:
  explicit Backend(int num_devices) : num_devices_(num_devices) {}

  std::string description() const override;
  int num_devices() const override { return num_devices_; }
  PhysicalDevice inspect(int ordinal) const override;
  bool can_access_peer(int from, int to) const override;
  int gpu_of(const void* data) const override;
  std::shared_ptr<void> keep_selection() const override;
  std::unique_ptr<DeviceContext> open(int ordinal) override;
  void* allocate_pinned(std::size_t bytes) override;
  void release_pinned(void* data) noexcept override;

 private:
  const int num_devices_;
};

}  // namespace tutti::cuda
