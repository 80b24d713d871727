// What stands between a caller's memory and what engines can combine.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tutti/cross_device_ops/collective_engine.h"
#include "tutti/cross_device_ops/communicator/call_request.h"
#include "tutti/tensor/tensor.h"

namespace tutti::internal {

/// Why the engine cannot do what the call asks for: compression where it would round more than
/// once. Nothing if it can.
std::optional<Error> refusal_of(const CallRequest& request, const CollectiveEngine& engine);

/// The call of a checked request. 16-bit numbers that the engine does not combine (and all, for
/// MEAN) become floats for the time of the call; memory that is not aligned to its elements is
/// copied. Costs nothing where neither is needed.
class PreparedCall {
 public:
  PreparedCall(const CallRequest& request, const CollectiveEngine& engine);
  PreparedCall(const PreparedCall&) = delete;
  PreparedCall& operator=(const PreparedCall&) = delete;

  const CollectiveCall& call() const { return call_; }
  /// After the engine has run: MEAN's division, and results into the caller's memory.
  void finish() {
    if (replaced_ || request_.op == ReduceOp::kMean) finish_results();
  }

 private:
  void finish_results();
  bool has_result() const;
  void replace(DType dtype);
  std::byte* scratch(std::size_t count, DType dtype);

  const CallRequest& request_;
  const CollectiveEngine& engine_;
  CollectiveCall call_;
  bool replaced_ = false;
  std::vector<ConstElements> inputs_;
  std::vector<Elements> outputs_;
  std::vector<MutableTensor> scratch_;
};

}  // namespace tutti::internal
