// Instantiates, launches and destroys executable graphs.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/cuda/graph.h"

namespace tutti::cuda {

Graph::Graph(const Gpu& gpu, cudaGraph_t captured, cudaStream_t stream)
    : gpu_(gpu), stream_(stream) {
  const cudaError_t status = cudaGraphInstantiate(&executable_, captured, 0);
  (void)cudaGraphDestroy(captured);
  check(status, "cudaGraphInstantiate");
  // Now, and not as part of the first launch.
  check(cudaGraphUpload(executable_, stream_), "cudaGraphUpload");
}

Graph::~Graph() {
  gpu_.use_quietly([this] { (void)cudaGraphExecDestroy(executable_); });
}

void Graph::launch() {
  gpu_.use([this] { check(cudaGraphLaunch(executable_, stream_), "cudaGraphLaunch"); });
}

}  // namespace tutti::cuda
