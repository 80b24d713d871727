// Reductions of tensors and gradients: checks and packing.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/cross_device_ops.h"

#include "core/names.h"
#include "cross_device_ops/buffer_call.h"
#include "cross_device_ops/call_checks.h"
#include "cross_device_ops/device_work.h"
#include "cross_device_ops/reduce_to_all.h"
#include "cross_device_ops/tensor_packer.h"
#include "tutti/cross_device_ops/gradient_ops.h"

namespace tutti {
namespace {

using internal::require;

std::string_view kind_of(const Gradient& gradient) {
  if (gradient.is_none()) return "no value";
  return gradient.is_dense() ? "a dense value" : "IndexedSlices";
}

void require_one_kind(const PerReplica<Gradient>& value) {
  require(value.size() > 0, "reduce: expected a value of one replica or more, got none");
  const std::string_view expected = value[0].is_none() ? "a value" : kind_of(value[0]);
  for (std::size_t r = 0; r < value.size(); ++r) {
    require(!value[r].is_none() && kind_of(value[r]) == expected, "reduce: expected ", expected,
            " as from replica 0, got ", kind_of(value[r]), " from replica ", r);
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
  require(!destinations.empty(), who, ": expected one destination or more, got none");
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
  std::vector<std::size_t> dense;  // places of the dense values
  for (std::size_t i = 0; i < values.size(); ++i) {
    require_one_kind(values[i]);
    require(values[i].size() == values[0].size(), "batch_all_reduce: expected ", values[0].size(),
            " replicas as in value 0, got ", values[i].size(), " in value ", i);
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

}  // namespace tutti
