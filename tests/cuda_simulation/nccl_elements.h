// What the stand-in of NCCL does with elements.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include <string>
#include <vector>

namespace tutti::cuda_simulation {

enum class NcclKind {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kSend,
  kReceive
};

/// One call of one rank. `root`: of a collective that has one, or the peer of a send or receive.
struct NcclCall {
  NcclKind kind = NcclKind::kAllReduce;
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t op = ncclSum;
  int root = -1;

  const char* name() const;
  bool is_collective() const { return kind != NcclKind::kSend && kind != NcclKind::kReceive; }
  /// Whether this rank's input is read, and its output written.
  bool reads(int rank) const {
    return kind != NcclKind::kReceive && (kind != NcclKind::kBroadcast || rank == root);
  }
  bool writes(int rank) const {
    return kind != NcclKind::kSend && (kind != NcclKind::kReduce || rank == root);
  }
};

/// What one rank calls within a group.
struct NcclLaunch {
  int rank = 0;
  cudaStream_t stream = nullptr;
  std::vector<NcclCall> calls;
};

/// Empty, or how the launches of the ranks (of all, if they are collectives) do not fit together.
std::string find_mismatch(const std::vector<NcclLaunch>& ranks);
/// Reads and writes the memory of all ranks. Sums go from rank to rank and are rounded at each.
void carry_out(const std::vector<NcclLaunch>& ranks);

}  // namespace tutti::cuda_simulation
