// One collective call as a non-blocking MPI collective.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <optional>
#include <vector>

#include "cross_device_ops/mpi/mpi_runtime.h"
#include "tutti/cross_device_ops/collective.h"
#include "tutti/tensor/buffer.h"

namespace tutti::internal {

/// A call of one input and one output, begun with start(), ended when test() says so. Its memory is
/// the caller's and MPI's until then. Threads: one.
class MpiCall {
 public:
  MpiCall(const CollectiveCall& call, MpiRuntime& runtime, MPI_Comm comm, int rank);
  /// Throws kOutOfRange for more elements than MPI can count.
  void start();
  /// Makes progress; whether it has ended.
  bool test();

 private:
  void start_reduce_scatter();
  void start_all_gather();
  void start_all_to_all();
  void finish();

  const CollectiveCall& call_;
  MpiRuntime& runtime_;
  const MPI_Comm comm_;
  const int rank_;
  ConstElements input_;
  Elements output_;
  // MPI reads these until the call has ended.
  std::vector<int> counts_, offsets_, receive_counts_, receive_offsets_;
  BufferRef result_;  // where the output lies within the input
  MPI_Request request_ = MPI_REQUEST_NULL;
  bool ended_ = false;
};

/// The same call on a copy of its data, for a rank that leaves before its data: others, who have
/// seen it come, may have begun with theirs, and MPI ends their call only when all have begun.
class StandIn {
 public:
  StandIn(const CollectiveCall& call, MpiRuntime& runtime, MPI_Comm comm, int rank);
  StandIn(const StandIn&) = delete;
  StandIn& operator=(const StandIn&) = delete;
  MpiCall& running() { return *running_; }

 private:
  CollectiveCall call_;
  std::vector<std::size_t> counts_, receive_counts_;
  BufferRef input_memory_, output_memory_;
  ConstElements input_;
  Elements output_;
  std::optional<MpiCall> running_;
};

}  // namespace tutti::internal
