// A call as the public functions of Communicator make it, and as engines get it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cross_device_ops/collective_engine.h"
#include "tutti/tensor/tensor.h"

namespace tutti::internal {

/// What the caller said. Spans, options and place are the caller's memory: to copy what has just
/// been written would cost more than all checks of a call.
struct CallRequest {
  Collective collective = Collective::kAllReduce;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  std::span<const ConstElements> inputs = {};
  std::span<const Elements> outputs = {};
  std::span<const std::size_t> counts = {};
  std::span<const std::size_t> receive_counts = {};
  const CallOptions& options;
  const SourceLocation& where;

  /// Of this rank's inputs, or of what it receives; whatever is wrong with the request.
  std::size_t count() const {
    if (collective == Collective::kBroadcast) return outputs.empty() ? 0 : outputs.front().count;
    std::size_t sum = 0;
    for (const ConstElements& input : inputs) sum += input.count;
    return sum;
  }
  DType dtype() const {
    if (!inputs.empty()) return inputs.front().dtype;
    return outputs.empty() ? DType::kFloat32 : outputs.front().dtype;
  }
  /// Whether outputs count on this rank.
  bool has_result(int rank) const { return collective != Collective::kReduce || root == rank; }
};

/// A copy of a request that needs nothing of the caller but the elements.
struct OwnedRequest {
  explicit OwnedRequest(const CallRequest& other)
      : inputs(other.inputs.begin(), other.inputs.end()),
        outputs(other.outputs.begin(), other.outputs.end()),
        counts(other.counts.begin(), other.counts.end()),
        receive_counts(other.receive_counts.begin(), other.receive_counts.end()),
        name(other.options.name),
        options(other.options),
        where(other.where),
        request{.collective = other.collective,
                .op = other.op,
                .root = other.root,
                .inputs = inputs,
                .outputs = outputs,
                .counts = counts,
                .receive_counts = receive_counts,
                .options = options,
                .where = where} {
    options.name = name;
    if (options.shape != nullptr) {
      shape = *options.shape;
      options.shape = &shape;
    }
  }
  OwnedRequest(const OwnedRequest&) = delete;
  OwnedRequest& operator=(const OwnedRequest&) = delete;

  std::vector<ConstElements> inputs;
  std::vector<Elements> outputs;
  std::vector<std::size_t> counts;
  std::vector<std::size_t> receive_counts;
  std::string name;
  Shape shape;
  CallOptions options;
  SourceLocation where;
  CallRequest request;  // of all these
};

/// Throws kInvalidArgument naming rank and call for a request that no group of `size` ranks can
/// carry out: types, counts, roots, a reduction that the type has not, memory that overlaps.
void check_request(const CallRequest& request, int rank, int size);
/// "rank 1: broadcast 'kernel': ": what such errors begin with.
std::string beginning_of_refusal(const CallRequest& request, int rank);

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
