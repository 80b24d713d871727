// The public side of CrossDeviceOps: checks, packing, MEAN and the fallback.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/cross_device_ops.h"

#include <cstring>

#include "tutti/core/logging.h"
#include "tutti/cross_device_ops/gradient_ops.h"
#include "tutti/cross_device_ops/local/reduction_to_one_device.h"
#include "tutti/cross_device_ops/sparse.h"
#include "tutti/cross_device_ops/tensor_packer.h"
#include "tutti/tensor/half_conversion.h"

namespace tutti {
namespace {

std::string_view kind_of(const Gradient& gradient) {
  if (gradient.is_none()) return "no value";
  return gradient.is_dense() ? "a dense value" : "IndexedSlices";
}

void require_one_kind(const PerReplica<Gradient>& value) {
  if (value.size() == 0) {
    fail(ErrorCode::kInvalidArgument, "reduce: expected a value of one replica or more, got none");
  }
  for (std::size_t r = 0; r < value.size(); ++r) {
    if (value[r].is_none() || kind_of(value[r]) != kind_of(value[0])) {
      fail(ErrorCode::kInvalidArgument, "reduce: expected ",
           value[0].is_none() ? "a value" : kind_of(value[0]), " as from replica 0, got ",
           kind_of(value[r]), " from replica ", r);
    }
  }
}

void require_mean_is_possible(ReduceOp op, DType dtype) {
  if (op == ReduceOp::kMean && !is_floating(dtype)) {
    fail(ErrorCode::kInvalidArgument, "reduce: MEAN needs a floating type, got ", dtype,
         "; try SUM, or cast() first");
  }
}

void require_equal(std::span<const Tensor> values) {
  for (std::size_t r = 1; r < values.size(); ++r) {
    if (values[r].shape() != values[0].shape() || values[r].dtype() != values[0].dtype()) {
      fail(ErrorCode::kInvalidArgument,
           "all_reduce: values of replicas differ; expected that of replica 0, ", values[0].dtype(),
           " ", values[0].shape(), ", got ", values[r].dtype(), " ", values[r].shape(),
           " from replica ", r);
    }
  }
}

std::vector<Tensor> dense_values(const PerReplica<Gradient>& value) {
  std::vector<Tensor> tensors;
  for (const Gradient& gradient : value) tensors.push_back(gradient.dense());
  return tensors;
}

std::vector<IndexedSlices> sparse_values(const PerReplica<Gradient>& value) {
  std::vector<IndexedSlices> slices;
  for (const Gradient& gradient : value) slices.push_back(gradient.slices());
  return slices;
}

void divide_in_place(std::span<const ReplicaBuffer> buffers, std::size_t divisor) {
  for (const ReplicaBuffer& buffer : buffers) {
    visit_arithmetic_floating(buffer.dtype, "all_reduce MEAN", [&]<class T>() {
      for (T& element : buffer.as<T>()) element /= static_cast<T>(divisor);
    });
  }
}

/// Copies of 16-bit buffers as floats, so that each sum is rounded once whatever the algorithm.
class WidenedBuffers {
 public:
  explicit WidenedBuffers(std::span<const ReplicaBuffer> buffers) : halves_(buffers) {
    for (const ReplicaBuffer& half : buffers) {
      storage_.emplace_back(Shape{static_cast<std::int64_t>(half.count)}, DType::kFloat32,
                            half.device);
      wide_.push_back({storage_.back().data(), half.count, DType::kFloat32, half.device});
      widen(half.dtype, half.data, wide_.back().as<float>().data(), half.count);
    }
  }
  std::span<const ReplicaBuffer> buffers() const { return wide_; }
  void write_back() const {
    for (std::size_t r = 0; r < wide_.size(); ++r) {
      narrow(wide_[r].as<float>().data(), halves_[r].dtype, halves_[r].data, halves_[r].count);
    }
  }

 private:
  std::span<const ReplicaBuffer> halves_;
  std::vector<MutableTensor> storage_;
  std::vector<ReplicaBuffer> wide_;
};

PerReplica<Gradient> sparse_for_all(ReduceOp op, const PerReplica<Gradient>& value) {
  const std::vector<IndexedSlices> slices = sparse_values(value);
  const Gradient all = concatenate_slices(op, slices, slices.front().values.device());
  return value.map([&](const Gradient& own) { return copy_to(all, device_of(own)); });
}

PerReplica<Gradient> copies_on(const Gradient& value, std::span<const Device> destinations) {
  std::vector<Gradient> copies;
  for (const Device& device : destinations) copies.push_back(copy_to(value, device));
  return PerReplica<Gradient>(std::move(copies));
}

void require_destinations(std::string_view who, std::span<const Device> destinations) {
  if (!destinations.empty()) return;
  fail(ErrorCode::kInvalidArgument, who, ": expected one destination or more, got none");
}

}  // namespace

std::string_view to_string(Determinism determinism) {
  switch (determinism) {
    case Determinism::kNone:
      return "none";
    case Determinism::kRunToRun:
      return "run-to-run";
    case Determinism::kCanonical:
      return "canonical";
  }
  return "?";
}

Gradient CrossDeviceOps::reduce(ReduceOp op, const PerReplica<Gradient>& value,
                                Device destination) {
  require_one_kind(value);
  if (value[0].is_slices()) return concatenate_slices(op, sparse_values(value), destination);
  const PerReplica<Tensor> reduced = all_reduce(op, PerReplica<Tensor>(dense_values(value)));
  return reduced[0].to(destination);
}

PerReplica<Gradient> CrossDeviceOps::reduce(ReduceOp op, const PerReplica<Gradient>& value,
                                            std::span<const Device> destinations) {
  require_destinations("reduce", destinations);
  return copies_on(reduce(op, value, destinations.front()), destinations);
}

std::vector<PerReplica<Gradient>> CrossDeviceOps::batch_reduce(
    ReduceOp op, std::span<const ReduceTask> tasks, const CommunicationOptions& options) {
  std::vector<PerReplica<Gradient>> values;
  for (const ReduceTask& task : tasks) {
    require_destinations("batch_reduce", task.destinations);
    values.push_back(task.value);
  }
  std::vector<PerReplica<Gradient>> results = batch_all_reduce(op, values, options);
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    results[i] = copies_on(results[i][0], tasks[i].destinations);
  }
  return results;
}

PerReplica<Tensor> CrossDeviceOps::all_reduce(ReduceOp op, const PerReplica<Tensor>& value) {
  const PerReplica<Gradient> gradients = value.map([](const Tensor& t) { return Gradient(t); });
  const std::vector<PerReplica<Gradient>> results = batch_all_reduce(op, {&gradients, 1});
  return results[0].map([](const Gradient& gradient) { return gradient.dense(); });
}

std::vector<PerReplica<Gradient>> CrossDeviceOps::batch_all_reduce(
    ReduceOp op, std::span<const PerReplica<Gradient>> values,
    const CommunicationOptions& options) {
  options.validate();
  std::vector<PerReplica<Gradient>> results(values.size());
  std::vector<std::size_t> dense;  // places of the dense values
  for (std::size_t i = 0; i < values.size(); ++i) {
    require_one_kind(values[i]);
    if (values[i].size() != values[0].size()) {
      fail(ErrorCode::kInvalidArgument, "batch_all_reduce: expected ", values[0].size(),
           " replicas as in value 0, got ", values[i].size(), " in value ", i);
    }
    if (values[i][0].is_slices()) {
      results[i] = sparse_for_all(op, values[i]);
    } else {
      const std::vector<Tensor> tensors = dense_values(values[i]);
      require_equal(tensors);
      require_mean_is_possible(op, tensors[0].dtype());
      dense.push_back(i);
    }
  }
  if (dense.empty()) return results;

  const std::size_t num_replicas = values[0].size();
  std::vector<std::vector<Tensor>> inputs(num_replicas);  // [replica][dense value]
  std::vector<std::vector<Tensor>> outputs(num_replicas, std::vector<Tensor>(dense.size()));
  for (std::size_t r = 0; r < num_replicas; ++r) {
    for (std::size_t i : dense) inputs[r].push_back(values[i][r].dense());
  }
  for (const PackPlan::Pack& next : plan_packs(inputs[0], options.bytes_per_pack).packs) {
    std::vector<MutableTensor> packed;
    std::vector<ReplicaBuffer> buffers;
    for (std::size_t r = 0; r < num_replicas; ++r) {
      const Device device = inputs[r][next.tensors.front()].device();
      packed.push_back(pack(next, inputs[r], device));
      buffers.push_back({packed.back().data(), next.count, next.dtype, device});
    }
    all_reduce_in_place(op, buffers, options);
    for (std::size_t r = 0; r < num_replicas; ++r) unpack(next, packed[r], inputs[r], outputs[r]);
  }
  for (std::size_t d = 0; d < dense.size(); ++d) {
    std::vector<Gradient> per_replica;
    for (std::size_t r = 0; r < num_replicas; ++r) {
      per_replica.emplace_back(outputs[r][d].to(inputs[r][d].device()));
    }
    results[dense[d]] = PerReplica<Gradient>(std::move(per_replica));
  }
  return results;
}

PerReplica<Tensor> CrossDeviceOps::broadcast(const Tensor& value,
                                             std::span<const Device> destinations) {
  require_destinations("broadcast", destinations);
  std::vector<Tensor> copies;
  for (const Device& device : destinations) copies.push_back(value.to(device));
  return PerReplica<Tensor>(std::move(copies));
}

Tensor CrossDeviceOps::gather(const PerReplica<Tensor>& value, int axis, Device destination) {
  if (value.size() == 0) {
    fail(ErrorCode::kInvalidArgument, "gather: expected a value of one replica or more, got none");
  }
  const Tensor& first = value[0];
  if (first.rank() == 0) {
    fail(ErrorCode::kInvalidArgument,
         "gather: scalars cannot be concatenated; expected a rank of 1 or more; try expand_dims()");
  }
  const int concatenated = first.shape().normalized_axis(axis, "gather");
  std::int64_t length = 0;
  for (std::size_t r = 0; r < value.size(); ++r) {
    const Tensor& own = value[r];
    if (own.rank() != first.rank() || own.dtype() != first.dtype()) {
      fail(ErrorCode::kInvalidArgument, "gather: expected rank and type of replica 0, ",
           first.dtype(), " ", first.shape(), ", got ", own.dtype(), " ", own.shape(),
           " from replica ", r);
    }
    for (int d = 0; d < first.rank(); ++d) {
      if (d != concatenated && own.shape()[d] != first.shape()[d]) {
        fail(ErrorCode::kInvalidArgument, "gather: Shape mismatch: dimension ", d,
             " must be equal in both shapes when gathering along axis ", concatenated,
             "; expected ", first.shape(), " as in replica 0, got ", own.shape(), " from replica ",
             r);
      }
    }
    length += own.shape()[concatenated];
  }
  MutableTensor result(first.shape().with_dim(concatenated, length), first.dtype(), destination);
  // Each value contributes one run of bytes per index of the dimensions before the axis.
  std::size_t outer = 1;
  for (int d = 0; d < concatenated; ++d) outer *= static_cast<std::size_t>(first.shape()[d]);
  std::byte* place = result.data();
  for (std::size_t o = 0; o < outer; ++o) {
    for (const Tensor& own : value) {
      const std::size_t run = own.num_bytes() / outer;
      if (run > 0) std::memcpy(place, own.bytes().data() + o * run, run);
      place += run;
    }
  }
  return result.freeze();
}

Tensor CrossDeviceOps::gather(const PerReplica<IndexedSlices>&, int, Device) {
  fail(ErrorCode::kUnimplemented,
       "gather: gather does not support IndexedSlices; expected PerReplica<Tensor>; try "
       "IndexedSlices::to_dense() first");
}

void CrossDeviceOps::all_reduce_in_place(ReduceOp op, std::span<const ReplicaBuffer> buffers,
                                         const CommunicationOptions& options) {
  if (buffers.empty()) {
    fail(ErrorCode::kInvalidArgument, name(), ": expected a buffer, got none");
  }
  const ReplicaBuffer& first = buffers.front();
  for (std::size_t r = 1; r < buffers.size(); ++r) {
    if (buffers[r].count != first.count || buffers[r].dtype != first.dtype) {
      fail(ErrorCode::kInvalidArgument, name(), ": buffers of replicas differ; expected ",
           first.count, " x ", first.dtype, " as in replica 0, got ", buffers[r].count, " x ",
           buffers[r].dtype, " from replica ", r);
    }
  }
  require_mean_is_possible(op, first.dtype);
  const ReduceOp combined = op == ReduceOp::kMean ? ReduceOp::kSum : op;
  if (first.dtype == DType::kBool && combined != ReduceOp::kMin && combined != ReduceOp::kMax) {
    fail(ErrorCode::kInvalidArgument, name(), ": bool has MIN and MAX only, got ", op,
         "; try cast() first");
  }
  if (first.count == 0 || buffers.size() == 1) return;  // the mean of one value is that value
  if (is_half(first.dtype) &&
      (op == ReduceOp::kMean || !supports(combined, first.dtype, first.device.type))) {
    const WidenedBuffers wide(buffers);
    all_reduce_in_place(op, wide.buffers(), options);
    wide.write_back();
    return;
  }
  if (supports(combined, first.dtype, first.device.type)) {
    all_reduce_buffers(combined, buffers);
  } else {
    const std::string what = concat(name(), ": ", combined, " of ", first.dtype, " on ",
                                    first.device, " is not supported");
    if (options.strict) {
      fail(ErrorCode::kUnimplemented, what,
           "; expected a supported combination; try without strict");
    }
    log_warning_once(what + "; reduction_to_one_device is used");
    ReductionToOneDevice fallback;
    static_cast<CrossDeviceOps&>(fallback).all_reduce_buffers(combined, buffers);
  }
  if (op == ReduceOp::kMean) divide_in_place(buffers, buffers.size());
}

void CrossDeviceOps::broadcast_buffers(std::span<const ReplicaBuffer> buffers, int root) {
  const ReplicaBuffer& source = buffers[static_cast<std::size_t>(root)];
  for (const ReplicaBuffer& buffer : buffers) {
    if (buffer.data != source.data) {
      std::memcpy(buffer.data, source.data, source.count * size_of(source.dtype));
    }
  }
}

}  // namespace tutti
