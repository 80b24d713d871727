// One replica's memory, as operations see it, and what they promise about the order of additions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "tutti/tensor/device.h"
#include "tutti/tensor/dtype.h"

namespace tutti {

namespace internal {
class DeviceWork;
}  // namespace internal

/// One contiguous buffer of a replica. Does not own its memory. As an input it is not written to.
struct ReplicaBuffer {
  std::byte* data = nullptr;
  std::size_t count = 0;  // elements
  DType dtype = DType::kFloat32;
  Device device;
  /// Of a GPU's buffer, as an operation gets it: the streams that its work goes into.
  internal::DeviceWork* work = nullptr;
  template <class T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(data), count};
  }
  std::size_t num_bytes() const { return count * size_of(dtype); }
};

/// What an operation promises about the order of additions. kCanonical: along the tree of
/// docs/determinism.md, the same bits as every other canonical operation. kRunToRun: the same bits
/// each run. kNone: nothing.
enum class Determinism { kNone, kRunToRun, kCanonical };
std::string_view to_string(Determinism determinism);

}  // namespace tutti
