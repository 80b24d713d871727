// Captured work, made ready to be launched many times.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "tutti/tensor/cuda/gpu.h"
#include "tutti/tensor/device_backend.h"

namespace tutti::cuda {

class Graph final : public DeviceGraph {
 public:
  /// Takes `captured`. Launches go to `stream`, which outlives this. The GPU must be selected.
  Graph(const Gpu& gpu, cudaGraph_t captured, cudaStream_t stream);
  /// What was launched still runs to its end.
  ~Graph() override;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch() override;

 private:
  const Gpu gpu_;
  const cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace tutti::cuda
