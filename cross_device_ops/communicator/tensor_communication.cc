// Tensor overloads of a rank's collectives.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/communicator.h"

#include <cstring>

#include "tutti/core/logging.h"
#include "tutti/cross_device_ops/gradient_ops.h"

namespace tutti {
namespace {

/// Returns the tensor in host memory, where these overloads communicate. If the tensor is on a GPU,
/// copies it and waits for the copy. Logs the first copy, because GPUs in one process have a faster
/// path.
Tensor on_host(const Communicator& communicator, const Tensor& tensor) {
  if (tensor.device().type == DeviceType::kCpu) return tensor;
  log_warning_once(concat("communicator '", communicator.name(),
                          "': tensors on GPUs are copied to the host and back; within a process, "
                          "a strategy's cross-device operation on GPUs is faster"));
  return tensor.to(Device{});
}

ConstElements elements_of(const Tensor& tensor) {
  return {tensor.bytes().data(), static_cast<std::size_t>(tensor.num_elements()), tensor.dtype()};
}

Elements elements_of(const MutableTensor& tensor) {
  return {tensor.data(), static_cast<std::size_t>(tensor.num_elements()), tensor.dtype()};
}

}  // namespace

Tensor all_reduce(Communicator& communicator, ReduceOp op, const Tensor& value, CallOptions options,
                  SourceLocation where) {
  const Tensor own = on_host(communicator, value);
  MutableTensor result(own.shape(), own.dtype(), own.device());
  options.shape = &value.shape();
  communicator.all_reduce(op, elements_of(own), elements_of(result), options, where);
  return result.freeze().to(value.device());
}

Tensor broadcast(Communicator& communicator, const Tensor& value, int root, CallOptions options,
                 SourceLocation where) {
  const Tensor own = on_host(communicator, value);
  MutableTensor result(own.shape(), own.dtype(), own.device());
  if (communicator.rank() == root && own.num_bytes() > 0) {
    std::memcpy(result.data(), own.bytes().data(), own.num_bytes());
  }
  options.shape = &value.shape();
  communicator.broadcast(elements_of(result), root, options, where);
  return result.freeze().to(value.device());
}

Tensor all_gather(Communicator& communicator, const Tensor& value, CallOptions options,
                  SourceLocation where) {
  if (value.rank() == 0) {
    communicator.refuse(Collective::kAllGather,
                        Error(ErrorCode::kInvalidArgument,
                              concat("rank ", communicator.rank(),
                                     ": all_gather: scalars cannot be concatenated; expected a "
                                     "rank >= 1; call expand_dims()")),
                        options, where);
  }
  const Tensor own = on_host(communicator, value);
  // All dimensions but the first must be equal on all ranks, so they are compared; the first is
  // exchanged.
  const Shape rest = own.shape().with_dim(0, 1);
  options.shape = &rest;
  const std::vector<std::int64_t> rows = {own.shape()[0]};
  std::vector<std::int64_t> all_rows(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(std::span(rows), std::span(all_rows), {}, options, where);
  std::vector<std::size_t> counts;
  std::int64_t total = 0;
  for (const std::int64_t length : all_rows) {
    counts.push_back(static_cast<std::size_t>(length * rest.num_elements()));
    total += length;
  }
  MutableTensor result(own.shape().with_dim(0, total), own.dtype(), own.device());
  communicator.all_gather(elements_of(own), elements_of(result), counts, options, where);
  return result.freeze().to(value.device());
}

IndexedSlices all_reduce(Communicator& communicator, ReduceOp op, const IndexedSlices& value,
                         CallOptions options, SourceLocation where) {
  if (op != ReduceOp::kSum && op != ReduceOp::kMean) {
    communicator.refuse(Collective::kAllReduce,
                        Error(ErrorCode::kInvalidArgument,
                              concat("rank ", communicator.rank(),
                                     ": all_reduce: expected SUM or MEAN of IndexedSlices, got ",
                                     op, "; call to_dense() first")),
                        options, where);
  }
  IndexedSlices all{all_gather(communicator, value.values, options, where),
                    all_gather(communicator, value.indices, options, where), value.dense_shape};
  if (op == ReduceOp::kSum) return all;
  return divide_by(Gradient(std::move(all)), communicator.size()).slices();
}

}  // namespace tutti
