// Other GPUs in the place of those of the machine.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tutti/tensor/gpu/gpus.h"

namespace tutti::internal {

struct GpusForTest {
  std::vector<LogicalGpu> gpus;
  DeviceBackend* backend = nullptr;
};

/// While `gpus` is not nullptr, logical_gpus() and gpu_backend() answer from it. Only for tests, in
/// one thread; call close_gpus_for_test() before and after.
void set_gpus_for_test(const GpusForTest* gpus);

}  // namespace tutti::internal
