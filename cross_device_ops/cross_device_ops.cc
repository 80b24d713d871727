// The public functions of CrossDeviceOps. The functions for tensors and gradients pack them into
// buffers; those for plain buffers handle alignment, MEAN and the fallback operation.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/cross_device_ops.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <numeric>

#include "core/names.h"
#include "cross_device_ops/buffer_call.h"
#include "cross_device_ops/call_checks.h"
#include "cross_device_ops/device_work.h"
#include "cross_device_ops/reduce_to_all.h"
#include "cross_device_ops/tensor_packer.h"
#include "tensor/half_conversion.h"
#include "tutti/core/logging.h"
#include "tutti/cross_device_ops/gradient_ops.h"
#include "tutti/cross_device_ops/registry.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/dispatch.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {
namespace {

using internal::require;

std::string_view kind_of(const Gradient& gradient) {
  if (gradient.is_none()) return "no value";
  return gradient.is_dense() ? "a dense value" : "IndexedSlices";
}

void require_one_kind(const PerReplica<Gradient>& value) {
  require(value.size() > 0, "reduce: expected a value from at least one replica, got none");
  const std::string_view expected = value[0].is_none() ? "a value" : kind_of(value[0]);
  for (std::size_t r = 0; r < value.size(); ++r) {
    require(!value[r].is_none() && kind_of(value[r]) == expected, "reduce: expected ", expected,
            " as on replica 0, got ", kind_of(value[r]), " from replica ", r);
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
  require(!destinations.empty(), who, ": expected at least one destination, got none");
}

}  // namespace

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
  std::vector<std::size_t> dense;  // indices of the dense values
  for (std::size_t i = 0; i < values.size(); ++i) {
    require_one_kind(values[i]);
    require(values[i].size() == values[0].size(), "batch_all_reduce: expected ", values[0].size(),
            " replicas, as in value 0, got ", values[i].size(), " in value ", i);
    if (values[i][0].is_slices()) {
      results[i] = sparse_for_all(op, values[i]);
    } else {
      const std::vector<Tensor> tensors = dense_values(values[i]);
      internal::require_equal("all_reduce", tensors);
      internal::require_reduction(op, tensors[0].dtype(), "all_reduce: ");
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
      buffers.push_back(internal::buffer_of(packed.back()));
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
  require(value.size() > 0, "gather: expected a value from at least one replica, got none");
  const Tensor& first = value[0];
  require(first.rank() > 0,
          "gather: scalars cannot be concatenated; expected a rank >= 1; call expand_dims()");
  const int concatenated = first.shape().normalized_axis(axis, "gather");
  for (std::size_t r = 0; r < value.size(); ++r) {
    const Tensor& own = value[r];
    require(own.rank() == first.rank() && own.dtype() == first.dtype(),
            "gather: expected the rank and type of replica 0, ", first.dtype(), " ", first.shape(),
            ", got ", own.dtype(), " ", own.shape(), " from replica ", r);
    for (int d = 0; d < first.rank(); ++d) {
      require(d == concatenated || own.shape()[d] == first.shape()[d],
              "gather: Shape mismatch: dimension ", d,
              " must be equal in both shapes when gathering along axis ", concatenated,
              "; expected ", first.shape(), " as on replica 0, got ", own.shape(), " from replica ",
              r);
    }
  }
  const SeparateObservers unseen;
  const NoDeviceScope where_it_is;
  std::vector<Tensor> near;
  for (const Tensor& own : value) near.push_back(own.to(destination));
  return concat(near, concatenated);
}

Tensor CrossDeviceOps::gather(const PerReplica<IndexedSlices>&, int, Device) {
  fail(ErrorCode::kUnimplemented,
       "gather does not support IndexedSlices; expected PerReplica<Tensor>; call "
       "IndexedSlices::to_dense() first");
}

}  // namespace tutti

// Packing of many small tensors into a few flat buffers.

namespace tutti {
namespace {

/// Copies the pack's tensors, which may be on other devices, into `buffer` with one kernel launch.
void pack_on_gpu(const PackPlan::Pack& pack, std::span<const Tensor> tensors,
                 const MutableTensor& buffer) {
  std::vector<Tensor> near;  // must live until the copies are queued
  std::vector<DeviceCopy> copies;
  auto* place = static_cast<std::byte*>(buffer.address());
  for (const std::size_t index : pack.tensors) {
    near.push_back(tensors[index].to(buffer.device()));
    const std::size_t bytes = near.back().num_bytes();
    if (bytes > 0) copies.push_back({place, near.back().address(), bytes});
    place += bytes;
  }
  internal::copy_many_on_gpu(buffer.device(), copies);
}

}  // namespace

PackPlan plan_packs(std::span<const Tensor> tensors, std::int64_t bytes_per_pack) {
  const auto limit =
      static_cast<std::size_t>(bytes_per_pack == 0 ? kDefaultBytesPerPack : bytes_per_pack);
  PackPlan plan;
  for (DType dtype : kAllDTypes) {
    bool open = false;
    for (std::size_t i = tensors.size(); i-- > 0;) {
      if (tensors[i].dtype() != dtype) continue;
      if (!open) plan.packs.push_back({.dtype = dtype, .tensors = {}, .count = 0});
      PackPlan::Pack& last = plan.packs.back();
      last.tensors.push_back(i);
      last.count += static_cast<std::size_t>(tensors[i].num_elements());
      open = last.count * size_of(dtype) < limit;
    }
  }
  return plan;
}

MutableTensor pack(const PackPlan::Pack& pack, std::span<const Tensor> tensors, Device device) {
  MutableTensor buffer({static_cast<std::int64_t>(pack.count)}, pack.dtype, device);
  if (device.type == DeviceType::kGpu) {
    pack_on_gpu(pack, tensors, buffer);
    return buffer;
  }
  std::byte* place = buffer.data();
  for (std::size_t index : pack.tensors) {
    const auto bytes = tensors[index].bytes();
    if (bytes.empty()) continue;
    std::memcpy(place, bytes.data(), bytes.size());
    place += bytes.size();
  }
  return buffer;
}

void unpack(const PackPlan::Pack& pack, const MutableTensor& buffer, std::span<const Tensor> like,
            std::span<Tensor> results) {
  const Tensor flat = buffer.freeze();
  std::int64_t first = 0;
  for (std::size_t index : pack.tensors) {
    const std::int64_t count = like[index].num_elements();
    results[index] = flat.detached_rows(first, count).detached_reshape(like[index].shape());
    first += count;
  }
}

}  // namespace tutti

// The public functions of CrossDeviceOps on plain buffers: checks, alignment, MEAN and the fallback
// operation.

namespace tutti {

namespace {

using internal::BufferCall;

/// Aligned copies of buffers, as elements of `dtype`: the buffers' own type, or float32 for 16-bit
/// types (which must be aligned). The copies are on the originals' devices. If the originals have a
/// `work`, that work makes and keeps the copies; otherwise, the compute stream makes them.
class BufferCopies {
 public:
  /// If `filled`, copies the originals' elements; otherwise the elements of the copies are
  /// undefined.
  BufferCopies(std::span<const ReplicaBuffer> originals, DType dtype, bool filled = true)
      : originals_(originals.begin(), originals.end()), copies_(originals_) {
    for (ReplicaBuffer& copy : copies_) {
      const ReplicaBuffer original = copy;
      copy.dtype = dtype;
      if (original.work) {
        copy.data = original.work->scratch(original.device, copy.num_bytes());
      } else {
        const Shape shape{static_cast<std::int64_t>(original.count)};
        storage_.emplace_back(shape, dtype, original.device);
        copy.data = static_cast<std::byte*>(storage_.back().address());
      }
      if (filled) internal::convert(original, copy);
    }
  }
  std::span<const ReplicaBuffer> buffers() const { return copies_; }
  /// Copies all buffers back to the originals, rounding once.
  void write_back() const {
    for (std::size_t r = 0; r < copies_.size(); ++r) internal::convert(copies_[r], originals_[r]);
  }

 private:
  std::vector<ReplicaBuffer> originals_;
  std::vector<MutableTensor> storage_;
  std::vector<ReplicaBuffer> copies_;
};

void divide_all(std::span<const ReplicaBuffer> buffers, std::size_t divisor) {
  for (const ReplicaBuffer& buffer : buffers) internal::divide(buffer, divisor);
}

std::vector<std::size_t> counts_of(std::span<const ReplicaBuffer> buffers) {
  std::vector<std::size_t> counts;
  for (const ReplicaBuffer& buffer : buffers) counts.push_back(buffer.count);
  return counts;
}

/// Returns the element counts of the equal parts into which each input is split, one part per
/// replica.
std::vector<std::size_t> equal_parts(std::string_view who, std::span<const ReplicaBuffer> inputs) {
  std::vector<std::size_t> counts;
  for (std::size_t r = 0; r < inputs.size(); ++r) {
    internal::require(inputs[r].count % inputs.size() == 0, who,
                      ": expected the number of elements to be a multiple of ", inputs.size(),
                      " for equal parts, got ", inputs[r].count, " from replica ", r,
                      "; pass counts for unequal parts");
    counts.insert(counts.end(), inputs.size(), inputs[r].count / inputs.size());
  }
  return counts;
}

/// Calls the operation. On GPUs, queues the call's work in a DeviceWork, which is then joined or,
/// if `pending` is given, added to it.
void dispatch(CrossDeviceOps& ops, const BufferCall& call, PendingReduction* pending) {
  if (call.first().device.type == DeviceType::kCpu) return internal::carry_out_unchecked(ops, call);
  std::vector<ReplicaBuffer> inputs(call.inputs.begin(), call.inputs.end());
  std::vector<ReplicaBuffer> outputs(call.outputs.begin(), call.outputs.end());
  std::vector<Device> devices;
  for (const ReplicaBuffer& buffer : inputs) devices.push_back(buffer.device);
  for (const ReplicaBuffer& buffer : outputs) devices.push_back(buffer.device);
  auto work = std::make_unique<internal::DeviceWork>(devices);
  for (ReplicaBuffer& buffer : inputs) buffer.work = work.get();
  for (ReplicaBuffer& buffer : outputs) buffer.work = work.get();
  internal::carry_out_unchecked(
      ops, {call.collective, call.op, call.root, inputs, outputs, call.counts});
  if (!pending) return work->join();
  pending->add(std::move(work));
}

}  // namespace

void CrossDeviceOps::all_reduce_in_place(ReduceOp op, std::span<const ReplicaBuffer> buffers,
                                         const CommunicationOptions& options) {
  start_all_reduce_in_place(op, buffers, options).join();
}

PendingReduction CrossDeviceOps::start_all_reduce_in_place(ReduceOp op,
                                                           std::span<const ReplicaBuffer> buffers,
                                                           const CommunicationOptions& options) {
  PendingReduction pending;
  carry_out({.op = op, .outputs = buffers}, options, &pending);
  return pending;
}

void CrossDeviceOps::all_reduce(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                                std::span<const ReplicaBuffer> outputs,
                                const CommunicationOptions& options) {
  internal::check_buffers(name(), {.op = op, .inputs = inputs, .outputs = outputs}, false);
  for (std::size_t r = 0; r < inputs.size(); ++r) internal::copy_buffer(inputs[r], outputs[r]);
  all_reduce_in_place(op, outputs, options);
}

void CrossDeviceOps::reduce(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                            const ReplicaBuffer& output, int root,
                            const CommunicationOptions& options) {
  carry_out({Collective::kReduce, op, root, inputs, {&output, 1}, {}}, options);
}

void CrossDeviceOps::broadcast(std::span<const ReplicaBuffer> buffers, int root) {
  carry_out({Collective::kBroadcast, ReduceOp::kSum, root, {}, buffers, {}}, {});
}

void CrossDeviceOps::all_gather(std::span<const ReplicaBuffer> inputs,
                                std::span<const ReplicaBuffer> outputs) {
  const std::vector<std::size_t> counts = counts_of(inputs);
  carry_out({Collective::kAllGather, ReduceOp::kSum, 0, inputs, outputs, counts}, {});
}

void CrossDeviceOps::reduce_scatter(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                                    std::span<const ReplicaBuffer> outputs,
                                    const CommunicationOptions& options) {
  const std::vector<std::size_t> counts = counts_of(outputs);
  carry_out({Collective::kReduceScatter, op, 0, inputs, outputs, counts}, options);
}

void CrossDeviceOps::all_to_all(std::span<const ReplicaBuffer> inputs,
                                std::span<const ReplicaBuffer> outputs,
                                std::span<const std::size_t> counts) {
  std::vector<std::size_t> used(counts.begin(), counts.end());
  if (counts.empty()) used = equal_parts(name(), inputs);
  carry_out({Collective::kAllToAll, ReduceOp::kSum, 0, inputs, outputs, used}, {});
}

void CrossDeviceOps::carry_out(const BufferCall& call, const CommunicationOptions& options,
                               PendingReduction* pending) {
  const bool sums_in_place = call.collective == Collective::kAllReduce;
  const bool in_place = sums_in_place || call.collective == Collective::kBroadcast;
  internal::check_buffers(name(), call, in_place);
  const auto is_empty = [](const ReplicaBuffer& buffer) { return buffer.count == 0; };
  if (std::ranges::all_of(call.outputs, is_empty)) return;
  if (call.inputs.size() == 1) return internal::copy_buffer(call.inputs[0], call.outputs[0]);
  // The sum and the mean of a single value are the value itself.
  if (in_place && call.outputs.size() == 1 && !(sums_in_place && spans_processes())) return;
  require_buffers(call.inputs, call.outputs);
  internal::carry_out(*this, call, options, pending);
}

void internal::carry_out(CrossDeviceOps& ops, const BufferCall& call,
                         const CommunicationOptions& options, PendingReduction* pending) {
  const ReplicaBuffer& first = call.first();
  const bool later = pending && first.device.type == DeviceType::kGpu;
  const auto carry_out_on_copies = [&](DType dtype) {
    const BufferCopies inputs(call.inputs, dtype);
    const auto outputs =
        std::make_shared<const BufferCopies>(call.outputs, dtype, call.inputs.empty());
    BufferCall staged = call;
    staged.inputs = inputs.buffers();
    staged.outputs = outputs->buffers();
    carry_out(ops, staged, options, pending);
    if (!later) return outputs->write_back();
    pending->after_join([outputs] { outputs->write_back(); });
  };
  // Plain copies do not depend on alignment.
  if ((call.reduces() || ops.provides(call.collective)) && call.is_misaligned()) {
    return carry_out_on_copies(first.dtype);
  }
  if (!call.reduces()) return dispatch(ops, call, pending);

  BufferCall combining = call;
  if (call.op == ReduceOp::kMean) combining.op = ReduceOp::kSum;
  const bool supported = ops.supports(combining.op, first.dtype, first.device.type);
  if (is_half(first.dtype) && (call.op == ReduceOp::kMean || !supported)) {
    return carry_out_on_copies(DType::kFloat32);
  }
  if (supported) {
    dispatch(ops, combining, pending);
  } else {
    const std::string what = concat(ops.name(), ": ", combining.op, " of ", first.dtype, " on ",
                                    first.device, " is not supported");
    if (options.strict) {
      fail(ErrorCode::kUnimplemented, what,
           "; expected a supported combination; use strict = false");
    }
    log_warning_once(what + "; reduction_to_one_device is used");
    const std::size_t n = call.num_members();
    const auto fallback = build_cross_device_ops(
        {.name = "reduction_to_one_device"},
        {.world_size = static_cast<int>(n), .local_devices = std::vector<Device>(n, first.device)});
    dispatch(*fallback, combining, pending);
  }
  if (call.op != ReduceOp::kMean) return;
  if (!later) return divide_all(call.outputs, call.num_members());
  const std::vector<ReplicaBuffer> outputs(call.outputs.begin(), call.outputs.end());
  pending->after_join([outputs, n = call.num_members()] { divide_all(outputs, n); });
}

void internal::carry_out_unchecked(CrossDeviceOps& ops, const BufferCall& call) {
  if (call.reduces()) {
    for (const ReplicaBuffer& each : call.inputs.empty() ? call.outputs : call.inputs) {
      ops.note_reduced(each.num_bytes());
    }
  }
  switch (call.collective) {
    case Collective::kAllReduce:
      return ops.all_reduce_buffers(call.op, call.outputs);
    case Collective::kReduce:
      // An empty span may still point to the caller's memory, so nullptr is passed instead.
      return ops.reduce_buffers(call.op, call.inputs,
                                call.outputs.empty() ? nullptr : call.outputs.data(), call.root);
    case Collective::kBroadcast:
      return ops.broadcast_buffers(call.outputs, call.root);
    case Collective::kAllGather:
      return ops.all_gather_buffers(call.inputs, call.outputs, call.counts);
    case Collective::kReduceScatter:
      return ops.reduce_scatter_buffers(call.op, call.inputs, call.outputs, call.counts);
    case Collective::kAllToAll:
      return ops.all_to_all_buffers(call.inputs, call.outputs, call.counts);
    case Collective::kBarrier:
      break;
  }
  fail(ErrorCode::kInternal, ops.name(), ": expected a collective that has buffers, got barrier");
}

namespace {

ReplicaBuffer part_of(const ReplicaBuffer& buffer, std::size_t first, std::size_t count) {
  ReplicaBuffer part = buffer;
  part.data += first * size_of(buffer.dtype);
  part.count = count;
  part.id = 0;  // ids identify whole buffers, not parts
  return part;
}

std::vector<ReplicaBuffer> parts_of(std::span<const ReplicaBuffer> buffers, std::size_t first,
                                    std::size_t count) {
  std::vector<ReplicaBuffer> parts;
  for (const ReplicaBuffer& buffer : buffers) parts.push_back(part_of(buffer, first, count));
  return parts;
}

using internal::copy_buffer;

/// On GPUs, where each device has its own stream, makes later work on each device wait for the
/// previous work on all of them.
void barrier(std::span<const ReplicaBuffer> buffers) {
  if (buffers.front().work) buffers.front().work->barrier();
}

/// Throws unless all members are local, because copies do not reach other processes.
void require_local(std::string_view who, std::string_view collective, bool all_are_local) {
  if (all_are_local) return;
  fail(ErrorCode::kUnimplemented, who, ": ", collective,
       " between processes cannot be built from this operation's all_reduce; expected an "
       "operation that implements ",
       collective);
}

}  // namespace

bool CrossDeviceOps::provides(Collective collective) const {
  return collective == Collective::kAllReduce;
}

void CrossDeviceOps::abort(const Error&) noexcept {}

void CrossDeviceOps::require_buffers(std::span<const ReplicaBuffer>,
                                     std::span<const ReplicaBuffer>) const {}

void CrossDeviceOps::reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                                    const ReplicaBuffer* output, int) {
  const BufferCopies copies(inputs, inputs.front().dtype);
  all_reduce_buffers(op, copies.buffers());
  if (!output) return;
  barrier(inputs);
  copy_buffer(copies.buffers().front(), *output);
  barrier(inputs);
}

void CrossDeviceOps::broadcast_buffers(std::span<const ReplicaBuffer> buffers, int root) {
  require_local(name(), "broadcast", static_cast<std::size_t>(root) < buffers.size());
  const ReplicaBuffer& source = buffers[static_cast<std::size_t>(root)];
  barrier(buffers);
  for (const ReplicaBuffer& buffer : buffers) copy_buffer(source, buffer);
  barrier(buffers);
}

void CrossDeviceOps::all_gather_buffers(std::span<const ReplicaBuffer> inputs,
                                        std::span<const ReplicaBuffer> outputs,
                                        std::span<const std::size_t> counts) {
  require_local(name(), "all_gather", counts.size() == inputs.size());
  const std::vector<std::size_t> cuts = internal::cuts_of(counts);
  barrier(inputs);
  for (const ReplicaBuffer& output : outputs) {
    for (std::size_t r = 0; r < inputs.size(); ++r) {
      copy_buffer(inputs[r], part_of(output, cuts[r], counts[r]));
    }
  }
  barrier(inputs);
}

void CrossDeviceOps::reduce_scatter_buffers(ReduceOp op, std::span<const ReplicaBuffer> inputs,
                                            std::span<const ReplicaBuffer> outputs,
                                            std::span<const std::size_t> counts) {
  require_local(name(), "reduce_scatter", counts.size() == inputs.size());
  const std::vector<std::size_t> cuts = internal::cuts_of(counts);
  // Iteration r copies part r of every input; together, these copies are as large as one input. If
  // the outputs alias the inputs, outputs[r] is a part that no later iteration reads.
  for (std::size_t r = 0; r < counts.size(); ++r) {
    if (counts[r] == 0) continue;
    const BufferCopies copies(parts_of(inputs, cuts[r], counts[r]), inputs.front().dtype);
    all_reduce_buffers(op, copies.buffers());
    copy_buffer(copies.buffers()[r], outputs[r]);
  }
}

void CrossDeviceOps::all_to_all_buffers(std::span<const ReplicaBuffer> inputs,
                                        std::span<const ReplicaBuffer> outputs,
                                        std::span<const std::size_t> counts) {
  const std::size_t v = inputs.size();
  require_local(name(), "all_to_all", counts.size() == v * v);
  barrier(inputs);
  std::vector<std::size_t> places(v);  // offset of the next part in each output
  for (std::size_t r = 0; r < v; ++r) {
    std::size_t first = 0;
    for (std::size_t s = 0; s < v; ++s) {
      const std::size_t count = counts[r * v + s];
      copy_buffer(part_of(inputs[r], first, count), part_of(outputs[s], places[s], count));
      first += count;
      places[s] += count;
    }
  }
  barrier(inputs);
}

}  // namespace tutti

// Copies and conversions of buffers.

namespace tutti::internal {

bool BufferCall::is_misaligned() const {
  const auto misaligned = [](const ReplicaBuffer& buffer) {
    return buffer.count > 0 &&
           reinterpret_cast<std::uintptr_t>(buffer.data) % size_of(buffer.dtype) != 0;
  };
  return std::ranges::any_of(inputs, misaligned) || std::ranges::any_of(outputs, misaligned);
}

void copy_buffer(const ReplicaBuffer& from, const ReplicaBuffer& to) {
  if (from.count == 0 || from.data == to.data) return;
  if (to.work) return to.work->copy(from, to);
  if (to.device.type == DeviceType::kGpu) return copy_on_gpu(from, to);
  std::memcpy(to.data, from.data, from.num_bytes());
}

void convert(const ReplicaBuffer& from, const ReplicaBuffer& to) {
  if (from.dtype == to.dtype) return copy_buffer(from, to);
  if (from.device.type == DeviceType::kGpu) return cast_on_gpu(from, to);
  // Neither buffer needs to be aligned: numbers are converted in aligned local buffers.
  constexpr std::size_t kBlock = 1024;
  std::array<float, kBlock> floats;
  std::array<std::uint16_t, kBlock> halves;
  auto* const half_bytes = reinterpret_cast<std::byte*>(halves.data());
  for (std::size_t first = 0; first < from.count; first += kBlock) {
    const std::size_t n = std::min(kBlock, from.count - first);
    const std::byte* const in = from.data + first * size_of(from.dtype);
    std::byte* const out = to.data + first * size_of(to.dtype);
    if (is_half(from.dtype)) {
      std::memcpy(half_bytes, in, n * 2);
      widen(from.dtype, half_bytes, floats.data(), n);
      std::memcpy(out, floats.data(), n * 4);
    } else {
      std::memcpy(floats.data(), in, n * 4);
      narrow(floats.data(), to.dtype, half_bytes, n);
      std::memcpy(out, half_bytes, n * 2);
    }
  }
}

void divide(const ReplicaBuffer& buffer, std::size_t divisor) {
  if (buffer.device.type == DeviceType::kGpu) return divide_on_gpu(buffer, divisor);
  visit_arithmetic_floating(buffer.dtype, "MEAN", [&]<class T>() {
    for (std::size_t i = 0; i < buffer.count; ++i) {
      T value;
      std::memcpy(&value, buffer.data + i * sizeof(T), sizeof(T));
      value /= static_cast<T>(divisor);
      std::memcpy(buffer.data + i * sizeof(T), &value, sizeof(T));
    }
  });
}

std::vector<std::size_t> cuts_of(std::span<const std::size_t> counts) {
  std::vector<std::size_t> cuts(counts.size() + 1, 0);
  std::partial_sum(counts.begin(), counts.end(), cuts.begin() + 1);
  return cuts;
}

}  // namespace tutti::internal
