// Which cuDNN engine computes a convolution: asked (or measured) once per problem, then remembered.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cudnn.h>

#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tensor/cuda/convolution_graph.h"
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/math_libraries.h"

namespace tutti::cuda {

/// Where the tensors of a convolution lie on the device. The result is one of them.
struct ConvolutionData {
  const void* x = nullptr;
  const void* filter = nullptr;
  const void* y = nullptr;
};

/// An engine that can run a problem, and the memory that it needs for it.
struct ConvolutionPlan {
  BackendDescriptor engine, plan;
  std::size_t workspace_bytes = 0;
};

/// For which device engines are sought: that of `handle`, or one that is only described (a
/// CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR), for tests on machines without it.
struct ConvolutionTarget {
  cudnnHandle_t handle = nullptr;
  const BackendDescriptor* device = nullptr;
};

/// The first `count` plans in cuDNN's order that `options` allow and that need at most
/// `max_workspace_bytes`. None: `reason` has cuDNN's last words.
std::vector<ConvolutionPlan> supported_plans(const ConvolutionGraph& graph, DType dtype,
                                             const ConvolutionTarget& target,
                                             const MathOptions& options, std::size_t count,
                                             std::size_t max_workspace_bytes, std::string& reason);

/// The chosen plans of one logical device.
class ConvolutionPlans {
 public:
  /// Puts the convolution into the stream of `call`. Throws kUnimplemented when cuDNN has no
  /// engine for it; kResourceExhausted when there is no memory even for the most modest one.
  void run(const ConvolutionProblem& problem, const ConvolutionData& data, const KernelCall& call);
  std::size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    std::unique_ptr<ConvolutionGraph> graph;
    std::unique_ptr<ConvolutionPlan> plan;
  };
  /// False: nothing fits.
  bool choose(Entry& entry, const ConvolutionProblem& problem, const ConvolutionData& data,
              const KernelCall& call, std::size_t max_workspace_bytes, std::string& reason);

  std::map<ConvolutionProblem::Key, Entry> entries_;
};

}  // namespace tutti::cuda
