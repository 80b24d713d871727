// Implements exchanges within groups of positions.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/mesh/mesh_groups.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <span>
#include <utility>

#include "strategy/variables/distributed_variable.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/ops/elementwise.h"

namespace tutti::internal {

MeshGroups::Workers& MeshGroups::workers_of(AxisSet axes) {
  WorkerTeam* const team = services_.team.get();
  Workers& workers = workers_[axes];
  const std::uint64_t connection = team ? team->connection() : 0;
  if (!workers.members.empty() && workers.connection == connection) return workers;
  // All workers find the same sets: those connected by a group of any position.
  std::vector<int> set_of(static_cast<std::size_t>(services_.num_workers()));
  std::iota(set_of.begin(), set_of.end(), 0);
  for (int position = 0; position < grid_.num_positions(); ++position) {
    for (const int other : grid_.group(position, axes)) {
      const int from = set_of[static_cast<std::size_t>(worker_of(other))];
      const int to = set_of[static_cast<std::size_t>(worker_of(position))];
      std::ranges::replace(set_of, std::max(from, to), std::min(from, to));
    }
  }
  const int own = team ? team->worker() : 0;
  workers.members.clear();
  for (int worker = 0; worker < std::ssize(set_of); ++worker) {
    if (set_of[static_cast<std::size_t>(worker)] == set_of[static_cast<std::size_t>(own)]) {
      workers.members.push_back(worker);
    }
  }
  workers.connection = connection;
  workers.communicator = nullptr;
  const bool any_shared = std::set<int>(set_of.begin(), set_of.end()).size() < set_of.size();
  if (any_shared) {  // making groups is collective
    auto communicator =
        team->make_group(workers.members, concat("workers of mesh axes ", int{axes}));
    if (workers.members.size() > 1) workers.communicator = std::move(communicator);
  }
  return workers;
}

std::vector<std::vector<Tensor>> MeshGroups::gather(AxisSet axes, const std::vector<Tensor>& own,
                                                    const std::string& name) {
  Workers& workers = workers_of(axes);
  const int first = services_.first_replica();
  std::map<int, Tensor> values;  // by position
  for (std::size_t p = 0; p < own.size(); ++p) values[first + static_cast<int>(p)] = own[p];
  if (workers.communicator) {
    const auto rows = static_cast<std::int64_t>(own.size());
    const Shape& shape = own.front().shape();
    const auto size = static_cast<std::size_t>(shape.num_elements());
    const DType dtype = own.front().dtype();
    MutableTensor packed(Shape{rows * shape.num_elements()}, dtype, Device{});
    const std::size_t num_bytes = size * size_of(dtype);
    for (std::size_t p = 0; p < own.size(); ++p) {
      const Tensor value = own[p].to(Device{});
      std::ranges::copy(value.bytes(), packed.data() + p * num_bytes);
    }
    const auto num_workers = static_cast<std::int64_t>(workers.members.size());
    MutableTensor all(Shape{num_workers * rows * shape.num_elements()}, dtype, Device{});
    workers.communicator->all_gather(
        {packed.data(), own.size() * size, dtype},
        {all.data(), workers.members.size() * own.size() * size, dtype}, {}, {.name = name},
        SourceLocation());
    const Tensor whole = all.freeze();
    for (std::int64_t i = 0; i < num_workers * rows; ++i) {
      const int worker = workers.members[static_cast<std::size_t>(i / rows)];
      const int position = worker * num_own() + static_cast<int>(i % rows);
      if (values.contains(position)) continue;
      values[position] = whole.detached_rows(i * shape.num_elements(), shape.num_elements())
                             .detached_reshape(shape);
    }
  }
  std::vector<std::vector<Tensor>> result;
  for (int p = 0; p < num_own(); ++p) {
    std::vector<Tensor>& group = result.emplace_back();
    for (const int member : grid_.group(first + p, axes)) group.push_back(values.at(member));
  }
  return result;
}

Tensor MeshGroups::sum_over_workers(Workers& workers, const std::vector<int>& group,
                                    const std::vector<Tensor>& own, const std::string& name) {
  std::vector<std::int32_t> counts;
  for (const int worker : workers.members) {
    counts.push_back(static_cast<std::int32_t>(
        std::ranges::count_if(group, [&](int p) { return worker_of(p) == worker; })));
  }
  const NoDeviceScope on_the_host;
  const DType dtype = own.front().dtype(), wide = PartialSums::sum_dtype(dtype);
  std::vector<Tensor> values;
  for (const Tensor& value : own) {
    const Tensor here = value.to(Device{});
    values.push_back(wide == dtype ? here : cast(here, wide));
  }
  PartialSums sums(*workers.communicator, counts, true);
  const auto count = static_cast<std::size_t>(own.front().num_elements());
  std::vector<MutableTensor> buffers;
  std::vector<Elements> partials;
  for (const CanonicalNode& node : sums.nodes()) {
    MutableTensor& buffer = buffers.emplace_back(sums.make_buffer(count, wide));
    const auto of_node = std::span(values).subspan(static_cast<std::size_t>(node.first),
                                                   static_cast<std::size_t>(node.count));
    const Tensor sum = reduce_values(&services_, ReduceOp::kSum, of_node, Device{});
    std::ranges::copy(sum.bytes(), buffer.data());
    partials.emplace_back(buffer.data(), count, wide);
  }
  sums.start_all_reduce(partials, {.name = name}).wait();
  const Tensor sum = buffers.front().freeze().detached_reshape(own.front().shape());
  return wide == dtype ? sum : cast(sum, dtype);
}

std::vector<Tensor> MeshGroups::reduce(AxisSet axes, ReduceOp op, const std::vector<Tensor>& own,
                                       const std::string& name) {
  Workers& workers = workers_of(axes);
  const int first = services_.first_replica();
  std::vector<std::vector<Tensor>> gathered;
  if (workers.communicator && op != ReduceOp::kSum) gathered = gather(axes, own, name);
  std::map<int, Tensor> results;  // by the first position of the group
  std::vector<Tensor> sums;
  for (int p = 0; p < num_own(); ++p) {
    const std::vector<int> group = grid_.group(first + p, axes);
    Tensor& result = results[group.front()];
    if (!result.defined()) {
      std::vector<Tensor> values;
      for (const int member : group) {
        if (worker_of(member) == worker_of(first)) {
          values.push_back(own[static_cast<std::size_t>(member - first)]);
        }
      }
      const Device device = values.front().device();
      if (!gathered.empty()) values = gathered[static_cast<std::size_t>(p)];
      result = workers.communicator && op == ReduceOp::kSum
                   ? sum_over_workers(workers, group, values, name)
                   : reduce_values(&services_, op, values, device);
    }
    sums.push_back(result.to(services_.replica_devices[static_cast<std::size_t>(p)]));
  }
  return sums;
}

}  // namespace tutti::internal
