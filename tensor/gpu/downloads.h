// Pinned memory through which bytes come from a device while others use the device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "tutti/core/sync.h"
#include "tutti/tensor/device_backend.h"

namespace tutti {

/// Blocks of pinned memory for copies to the host: a copy to other memory keeps the calling thread,
/// and with it the device's context, until the device is there. As many blocks as threads that copy
/// at once. Any thread.
class Downloads {
 public:
  static constexpr std::size_t kBlockBytes = std::size_t{4} << 20;

  explicit Downloads(DeviceBackend& backend) : backend_(backend) {}
  ~Downloads();
  Downloads(const Downloads&) = delete;
  Downloads& operator=(const Downloads&) = delete;

  /// A block for one copy after the other; nullptr when the system has no pinned memory.
  void* take();
  /// After the last copy is done. A block whose copy may still come is never given back.
  void give_back(void* block);

 private:
  DeviceBackend& backend_;
  Mutex mutex_;
  std::vector<void*> idle_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti
