// The GPUs of this process.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/gpu/gpus.h"

#include "tutti/tensor/gpu/gpus_for_test.h"

namespace tutti {
namespace {

const internal::GpusForTest*& replaced() {
  static const internal::GpusForTest* gpus = nullptr;
  return gpus;
}

}  // namespace

void internal::set_gpus_for_test(const GpusForTest* gpus) { replaced() = gpus; }

const std::vector<LogicalGpu>& logical_gpus() {
  static const std::vector<LogicalGpu> none;
  return replaced() ? replaced()->gpus : none;
}

const std::string& gpu_unavailable_reason() {
  static const std::string reason = "this build has no GPU backend";
  static const std::string none;
  return replaced() ? none : reason;
}

DeviceBackend* gpu_backend() { return replaced() ? replaced()->backend : nullptr; }

}  // namespace tutti
