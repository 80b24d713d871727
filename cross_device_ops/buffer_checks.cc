// What buffers of several replicas must have in common before anything is done with them.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/buffer_call.h"

#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

bool overlap(const ReplicaBuffer& a, const ReplicaBuffer& b) {
  const std::less<const std::byte*> before;
  return a.count > 0 && b.count > 0 && before(a.data, b.data + b.num_bytes()) &&
         before(b.data, a.data + a.num_bytes());
}

void require_one_dtype(std::string_view who, std::string_view kind,
                       std::span<const ReplicaBuffer> buffers, DType expected) {
  for (std::size_t r = 0; r < buffers.size(); ++r) {
    if (buffers[r].dtype != expected) {
      fail(ErrorCode::kInvalidArgument, who, ": buffers of replicas differ; expected ", expected,
           " as in the input of replica 0, got ", buffers[r].dtype, " in the ", kind,
           " of replica ", r);
    }
  }
}

void require_one_kind_of_device(std::string_view who, std::span<const ReplicaBuffer> inputs,
                                std::span<const ReplicaBuffer> outputs) {
  const ReplicaBuffer& first = outputs.front();
  for (const auto& [kind, buffers] : {std::pair("input", inputs), std::pair("output", outputs)}) {
    for (std::size_t r = 0; r < buffers.size(); ++r) {
      if (buffers[r].device.type == first.device.type) continue;
      fail(ErrorCode::kInvalidArgument, who, ": buffers on CPU and GPU; expected one kind, got ",
           first.device, " and ", buffers[r].device, " (the ", kind, " of replica ", r,
           "); try Tensor::to() first");
    }
  }
}

}  // namespace

void require_mean_is_possible(ReduceOp op, DType dtype) {
  if (op == ReduceOp::kMean && !is_floating(dtype)) {
    fail(ErrorCode::kInvalidArgument, "reduce: MEAN needs a floating type, got ", dtype,
         "; try SUM, or cast() first");
  }
}

void require_reduction(std::string_view who, ReduceOp op, DType dtype) {
  require_mean_is_possible(op, dtype);
  if (dtype == DType::kBool && op != ReduceOp::kMin && op != ReduceOp::kMax) {
    fail(ErrorCode::kInvalidArgument, who, ": bool has MIN and MAX only, got ", op,
         "; try cast() first");
  }
}

void require_root(std::string_view who, int root, std::size_t num_members) {
  if (root >= 0 && static_cast<std::size_t>(root) < num_members) return;
  fail(ErrorCode::kInvalidArgument, who, ": no such root; expected 0 to ", num_members - 1,
       ", got ", root);
}

void require_equal_buffers(std::string_view who, std::span<const ReplicaBuffer> buffers) {
  if (buffers.empty()) fail(ErrorCode::kInvalidArgument, who, ": expected a buffer, got none");
  const ReplicaBuffer& first = buffers.front();
  for (std::size_t r = 1; r < buffers.size(); ++r) {
    if (buffers[r].count != first.count || buffers[r].dtype != first.dtype) {
      fail(ErrorCode::kInvalidArgument, who, ": buffers of replicas differ; expected ", first.count,
           " x ", first.dtype, " as in replica 0, got ", buffers[r].count, " x ", buffers[r].dtype,
           " from replica ", r);
    }
  }
}

void require_pairs(std::string_view who, std::span<const ReplicaBuffer> inputs,
                   std::span<const ReplicaBuffer> outputs) {
  if (inputs.empty()) fail(ErrorCode::kInvalidArgument, who, ": expected a buffer, got none");
  if (inputs.size() != outputs.size()) {
    fail(ErrorCode::kInvalidArgument, who, ": expected an output for each of ", inputs.size(),
         " inputs, got ", outputs.size());
  }
  require_one_dtype(who, "input", inputs, inputs[0].dtype);
  require_one_dtype(who, "output", outputs, inputs[0].dtype);
}

void require_count(std::string_view who, std::string_view what, std::size_t expected,
                   std::size_t got) {
  if (expected == got) return;
  fail(ErrorCode::kInvalidArgument, who, ": counts do not fit together; expected ", expected,
       " elements in ", what, ", got ", got);
}

void require_apart(std::string_view who, std::span<const ReplicaBuffer> inputs,
                   std::span<const ReplicaBuffer> outputs,
                   const std::function<bool(std::size_t input, std::size_t output)>& in_place) {
  require_one_kind_of_device(who, inputs, outputs);
  for (std::size_t o = 0; o < outputs.size(); ++o) {
    for (std::size_t other = 0; other < o; ++other) {
      if (!overlap(outputs[o], outputs[other])) continue;
      fail(ErrorCode::kInvalidArgument, who, ": memory overlaps; expected outputs apart, got those",
           " of replicas ", other, " and ", o);
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!overlap(inputs[i], outputs[o]) || in_place(i, o)) continue;
      fail(ErrorCode::kInvalidArgument, who, ": memory overlaps; expected apart or in place, got ",
           "the input of replica ", i, " and the output of replica ", o);
    }
  }
}

}  // namespace tutti::internal
