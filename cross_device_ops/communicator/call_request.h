// A call as the public functions of Communicator make it, and as engines get it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>

#include "cross_device_ops/collective_engine.h"
#include "tutti/tensor/buffer.h"

namespace tutti::internal {

/// A call as its caller describes it: with MEAN, and with buffers of any type and alignment. Spans,
/// options and source location are the caller's memory: a copy would cost more than all checks.
struct CallRequest : CollectiveCall {
  const CallOptions& options;
  const SourceLocation& where;

  /// Returns true if outputs count on this rank.
  bool has_result(int rank) const { return collective != Collective::kReduce || root == rank; }
};

/// Throws kInvalidArgument naming rank and call for a request that no group of `size` ranks can
/// carry out: types, counts, roots, a reduction that the type has not, memory that overlaps.
void check_request(const CallRequest& request, int rank, int size);
/// "rank 1: broadcast 'kernel': ": what such errors begin with.
std::string beginning_of_refusal(const CallRequest& request, int rank);

/// Why the engine cannot do what the call asks for: compression where it would round more than
/// once. Nothing if it can.
std::optional<Error> refusal_of(const CallRequest& request, const CollectiveEngine& engine);

/// The call of a checked request as the engine gets it. Costs nothing where the engine can work on
/// the caller's memory. Else the elements are copied into one aligned buffer for the time of the
/// call: as floats where the engine does not combine 16-bit numbers (and for MEAN), and lists where
/// it does not take them.
class PreparedCall {
 public:
  PreparedCall(const CallRequest& request, const CollectiveEngine& engine);
  PreparedCall(const PreparedCall&) = delete;
  PreparedCall& operator=(const PreparedCall&) = delete;

  const CollectiveCall& call() const { return call_; }
  /// After the engine has run: MEAN's division, and results into the caller's memory.
  void finish() {
    if (copy_ || request_.op == ReduceOp::kMean) finish_results();
  }

 private:
  void copy_as(DType dtype);
  void finish_results();

  const CallRequest& request_;
  const CollectiveEngine& engine_;
  CollectiveCall call_;
  BufferRef copy_;  // the inputs one after the other; reduce_scatter: and the output
  ConstElements input_;
  Elements output_;
};

}  // namespace tutti::internal
