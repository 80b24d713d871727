// Implements exchanges within groups of positions.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/mesh/mesh_groups.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "cross_device_ops/communicator/partial_sums.h"
#include "strategy/variables/distributed_variable.h"
#include "tensor/step_hooks.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti::internal {

Tensor part_along(const Tensor& value, int dim, int count, int index) {
  if (count == 1) return value;
  const std::int64_t size = value.shape().dim(dim) / count;
  if (dim == 0) return value.detached_rows(size * index, size);
  std::vector<std::int64_t> begin(static_cast<std::size_t>(value.rank()), 0);
  std::vector<std::int64_t> sizes(value.shape().begin(), value.shape().end());
  begin[static_cast<std::size_t>(dim)] = size * index;
  sizes[static_cast<std::size_t>(dim)] = size;
  const OpPartitionerScope none(nullptr);
  const GradientTape::StopRecording stop;
  const NoDeviceScope where_it_is;
  return slice(value, begin, sizes);
}

bool MeshGroups::fits(const DeviceMesh& devices, int count) {
  const std::vector<MeshAxis>& axes = devices.axes();
  for (std::size_t i = axes.size(); i-- > 0 && count > 1;) {
    if (count % axes[i].size != 0) return axes[i].size % count == 0;
    count /= axes[i].size;
  }
  return true;
}

MeshGroups::Workers& MeshGroups::workers_of(AxisSet axes) {
  WorkerTeam* const team = services_.team.get();
  Workers& workers = workers_[axes];
  const std::uint64_t connection = team ? team->connection() : 0;
  if (!workers.members.empty() && workers.connection == connection) return workers;
  std::set<int> members;
  const std::vector<int> group = grid_.group(first_own(), axes);
  for (const int position : group) members.insert(worker_of(position));
  workers.members.assign(members.begin(), members.end());
  const std::size_t of_worker = group.size() / members.size();
  for (std::size_t i = 0; i < group.size(); ++i) {
    workers.are_in_order &= worker_of(group[i]) == workers.members[i / of_worker];
  }
  workers.connection = connection;
  workers.communicator = nullptr;
  if (members.size() > 1) {  // same condition on all workers
    workers.communicator =
        team->make_group(workers.members, concat("workers of mesh axes ", int{axes}));
  }
  return workers;
}

std::vector<int> MeshGroups::members_of(int position, AxisSet axes, int worker) const {
  std::vector<int> members = grid_.group(position, axes);
  std::erase_if(members, [&](int member) { return worker_of(member) != worker; });
  return members;
}

std::vector<std::vector<int>> MeshGroups::own_groups(AxisSet axes) const {
  std::map<int, std::vector<int>> groups;  // keyed by the first member of the full group
  for (int p = first_own(); p < first_own() + num_own(); ++p) {
    groups.try_emplace(grid_.group(p, axes).front(), members_of(p, axes, worker_of(p)));
  }
  std::vector<std::vector<int>> result;
  for (auto& [first, members] : groups) result.push_back(std::move(members));
  return result;
}

std::vector<std::vector<Tensor>> MeshGroups::gather(AxisSet axes, const std::vector<Tensor>& own,
                                                    const std::string& name) {
  const Tensor received = needs_workers(axes) ? start_gather(axes, own, name).wait() : Tensor();
  return by_group(axes, own, received);
}

bool MeshGroups::needs_workers(AxisSet axes) const {
  return std::ranges::any_of(grid_.group(first_own(), axes), [&](int position) {
    return worker_of(position) != worker_of(first_own());
  });
}

StartedGather MeshGroups::start_gather(AxisSet axes, const std::vector<Tensor>& own,
                                       const std::string& name) {
  Workers& workers = workers_of(axes);
  const std::int64_t count = std::ssize(own) * own.front().num_elements();
  const DType dtype = own.front().dtype();
  MutableTensor packed(Shape{count}, dtype, Device{});
  std::byte* to = packed.data();
  for (const Tensor& value : own) to = std::ranges::copy(value.to(Device{}).bytes(), to).out;
  const MutableTensor all(Shape{count * std::ssize(workers.members)}, dtype, Device{});
  CollectiveHandle handle = workers.communicator->start_all_gather(
      {packed.data(), static_cast<std::size_t>(count), dtype},
      {all.data(), static_cast<std::size_t>(all.num_elements()), dtype}, {}, {.name = name},
      SourceLocation());
  return {*services_.team, packed.freeze(), all, std::move(handle)};
}

std::vector<std::vector<Tensor>> MeshGroups::by_group(AxisSet axes, const std::vector<Tensor>& own,
                                                      const Tensor& received) {
  std::map<int, Tensor> values;  // keyed by position
  for (int p = 0; p < num_own(); ++p) values[first_own() + p] = own[static_cast<std::size_t>(p)];
  if (received.defined()) {
    const Shape& shape = own.front().shape();
    std::int64_t next = 0;
    for (const int worker : workers_of(axes).members) {
      for (int p = 0; p < num_own(); ++p, next += shape.num_elements()) {
        values.try_emplace(
            worker * num_own() + p,
            received.detached_rows(next, shape.num_elements()).detached_reshape(shape));
      }
    }
  }
  std::vector<std::vector<Tensor>> result;
  for (int p = first_own(); p < first_own() + num_own(); ++p) {
    std::vector<Tensor>& group = result.emplace_back();
    for (const int member : grid_.group(p, axes)) group.push_back(values.at(member));
  }
  return result;
}

std::vector<std::vector<Tensor>> MeshGroups::all_to_all(AxisSet axes, int dim,
                                                        const std::vector<Tensor>& own,
                                                        const std::string& name) {
  Workers& workers = workers_of(axes);
  const int count = grid_.size(axes);
  const auto piece = [&](int from, int to) {
    return part_along(own[static_cast<std::size_t>(from - first_own())], dim, count,
                      grid_.index(to, axes));
  };
  const Shape shape =
      own.front().shape().with_dim(dim, own.front().shape().dim(dim) / std::int64_t{count});
  const DType dtype = own.front().dtype();
  const std::vector<std::vector<int>> groups = own_groups(axes);
  std::map<std::pair<int, int>, Tensor> received;  // keyed by sender and receiver
  if (workers.communicator) {
    // Chunks of `packed` are ordered by receiving worker, then by group, sender and receiver.
    const std::int64_t total = std::ssize(own) * own.front().num_elements();
    MutableTensor packed(Shape{total}, dtype, Device{}), all(Shape{total}, dtype, Device{});
    std::byte* to = packed.data();
    for (const int worker : workers.members) {
      for (const std::vector<int>& local : groups) {
        for (const int sender : local) {
          for (const int receiver : members_of(local.front(), axes, worker)) {
            to = std::ranges::copy(piece(sender, receiver).to(Device{}).bytes(), to).out;
          }
        }
      }
    }
    const auto size = static_cast<std::size_t>(total);
    workers.communicator->all_to_all({packed.data(), size, dtype}, {all.data(), size, dtype}, {},
                                     {}, {.name = name}, SourceLocation());
    const Tensor parts = all.freeze();
    std::int64_t next = 0;
    for (const int worker : workers.members) {
      for (const std::vector<int>& local : groups) {
        for (const int sender : members_of(local.front(), axes, worker)) {
          for (const int receiver : local) {
            received[{sender, receiver}] =
                parts.detached_rows(next, shape.num_elements()).detached_reshape(shape);
            next += shape.num_elements();
          }
        }
      }
    }
  }
  std::vector<std::vector<Tensor>> result;
  for (int p = first_own(); p < first_own() + num_own(); ++p) {
    std::vector<Tensor>& parts = result.emplace_back();
    for (const int member : grid_.group(p, axes)) {
      const bool is_here = worker_of(member) == worker_of(p);
      parts.push_back(is_here ? piece(member, p) : received.at({member, p}));
    }
  }
  return result;
}

std::vector<Tensor> MeshGroups::receive(AxisSet axes, const std::vector<int>& senders,
                                        const std::vector<Tensor>& own, const std::string& name) {
  Workers& workers = workers_of(axes);
  const std::vector<std::vector<int>> groups = own_groups(axes);
  const auto sender_of = [&](int receiver) {
    const int sender = senders[static_cast<std::size_t>(grid_.index(receiver, axes))];
    return grid_.group(receiver, axes)[static_cast<std::size_t>(sender)];
  };
  // Returns the positions of worker `from` whose values worker `to` needs, without duplicates.
  const auto sent = [&](int from, int to) {
    std::vector<int> values;
    for (const std::vector<int>& local : groups) {
      for (const int receiver : members_of(local.front(), axes, to)) {
        const int sender = sender_of(receiver);
        if (worker_of(sender) == from && !std::ranges::count(values, sender)) {
          values.push_back(sender);
        }
      }
    }
    return values;
  };
  std::map<int, Tensor> values;  // keyed by position
  for (int p = 0; p < num_own(); ++p) values[first_own() + p] = own[static_cast<std::size_t>(p)];
  if (workers.communicator) {
    const Shape& shape = own.front().shape();
    const auto size = static_cast<std::size_t>(shape.num_elements());
    const DType dtype = own.front().dtype();
    const int here = worker_of(first_own());
    std::vector<std::size_t> to_worker, from_worker;
    std::vector<int> incoming;
    std::vector<Tensor> outgoing;
    for (const int worker : workers.members) {
      const std::vector<int> to = worker == here ? std::vector<int>() : sent(here, worker);
      const std::vector<int> from = worker == here ? std::vector<int>() : sent(worker, here);
      for (const int position : to) outgoing.push_back(values.at(position).to(Device{}));
      to_worker.push_back(to.size() * size);
      from_worker.push_back(from.size() * size);
      incoming.insert(incoming.end(), from.begin(), from.end());
    }
    const auto rows = [&](std::size_t count) {
      return Shape{static_cast<std::int64_t>(count) * shape.num_elements()};
    };
    MutableTensor packed(rows(outgoing.size()), dtype, Device{});
    MutableTensor all(rows(incoming.size()), dtype, Device{});
    std::byte* next = packed.data();
    for (const Tensor& value : outgoing) next = std::ranges::copy(value.bytes(), next).out;
    workers.communicator->all_to_all({packed.data(), outgoing.size() * size, dtype},
                                     {all.data(), incoming.size() * size, dtype}, to_worker,
                                     from_worker, {.name = name}, SourceLocation());
    const Tensor received = all.freeze();
    for (std::size_t i = 0; i < incoming.size(); ++i) {
      values[incoming[i]] = received
                                .detached_rows(static_cast<std::int64_t>(i) * shape.num_elements(),
                                               shape.num_elements())
                                .detached_reshape(shape);
    }
  }
  std::vector<Tensor> result;
  for (int p = first_own(); p < first_own() + num_own(); ++p) {
    result.push_back(values.at(sender_of(p)));
  }
  return result;
}

// Sums.

/// Sums of one dtype over the same axes. One collective computes all of them.
struct MeshSums::OverWorkers {
  AxisSet axes = 0;
  bool is_scattered = false;  // true if each worker receives only its own positions' parts
  DType dtype = DType::kFloat32;
  std::vector<std::size_t> sums = {};          // indices into the sums of start_sums()
  std::unique_ptr<PartialSums> partials = {};  // destroyed after the buffers that it may own
  std::vector<MutableTensor> buffers = {};     // buffers of partial sums
  MutableTensor own = {};                      // this worker's parts of a scattered sum
  std::vector<std::size_t> counts = {};        // number of elements per worker
  /// Stores the results. Called after the sum is complete.
  std::function<void(const Tensor& sum, std::vector<std::vector<Tensor>>& results)> keep = {};
  CollectiveHandle handle = {};  // destroyed first, because its destructor waits
};

MeshSums::MeshSums() = default;
MeshSums::MeshSums(std::vector<std::vector<Tensor>> results) : results_(std::move(results)) {}
MeshSums::~MeshSums() = default;

std::vector<std::vector<Tensor>> MeshSums::wait() {
  for (const auto& together : over_workers_) {
    together->handle.wait();
    together->keep(
        together->is_scattered ? together->own.freeze() : together->buffers.front().freeze(),
        results_);
  }
  return std::move(results_);
}

std::vector<Tensor> MeshGroups::sum_here(const MeshSum& sum) const {
  const int count = grid_.size(sum.parts);
  std::map<std::pair<int, int>, Tensor> results;  // keyed by first member and part
  std::vector<Tensor> by_position;
  for (int p = first_own(); p < first_own() + num_own(); ++p) {
    const std::vector<int> group = grid_.group(p, sum.axes);
    const int part = grid_.index(p, sum.parts);
    Tensor& result = results[{group.front(), part}];
    if (!result.defined()) {
      std::vector<Tensor> values;
      for (const int member : group) {
        const Tensor& value = sum.own[static_cast<std::size_t>(member - first_own())];
        values.push_back(part_along(value, sum.dim, count, part));
      }
      result = reduce_values(&services_, ReduceOp::kSum, values, device_of(p));
    }
    by_position.push_back(result.to(device_of(p)));
  }
  return by_position;
}

/// Gathers the values and adds them locally, for groups in which a worker's values are not
/// consecutive in the canonical order.
std::vector<Tensor> MeshGroups::sum_gathered(const MeshSum& sum, const std::string& name) {
  const std::vector<std::vector<Tensor>> values = gather(sum.axes, sum.own, name);
  const DType dtype = sum.own.front().dtype(), wide = PartialSums::sum_dtype(dtype);
  const int count = grid_.size(sum.parts);
  const NoDeviceScope where_they_are;
  std::map<std::pair<int, int>, Tensor> results;  // keyed by first member and part
  std::vector<Tensor> by_position;
  for (int p = first_own(); p < first_own() + num_own(); ++p) {
    const int part = grid_.index(p, sum.parts);
    Tensor& result = results[{grid_.group(p, sum.axes).front(), part}];
    if (!result.defined()) {
      std::vector<Tensor> parts;
      for (const Tensor& value : values[static_cast<std::size_t>(p - first_own())]) {
        const Tensor own = part_along(value.to(Device{}), sum.dim, count, part);
        parts.push_back(wide == dtype ? own : cast(own, wide));
      }
      result = reduce_values(&services_, ReduceOp::kSum, parts, Device{});
      if (wide != dtype) result = cast(result, dtype);
    }
    by_position.push_back(result.to(device_of(p)));
  }
  return by_position;
}

void MeshGroups::start_over_workers(MeshSums::OverWorkers& together,
                                    const std::vector<MeshSum>& sums, const std::string& name) {
  Workers& workers = workers_of(together.axes);
  const std::vector<std::vector<int>> groups = own_groups(together.axes);
  const auto num_workers = workers.members.size();
  const auto num_local = static_cast<std::int32_t>(groups.front().size());
  together.partials = std::make_unique<PartialSums>(
      *workers.communicator, std::vector<std::int32_t>(num_workers, num_local), true);
  const DType wide = PartialSums::sum_dtype(together.dtype);
  std::size_t total = 0;
  for (const std::size_t s : together.sums) {
    total += groups.size() * static_cast<std::size_t>(sums[s].own.front().num_elements());
  }
  const NoDeviceScope on_the_host;
  std::vector<Elements> elements;
  for (const CanonicalNode& node : together.partials->nodes()) {
    MutableTensor& buffer =
        together.buffers.emplace_back(together.partials->make_buffer(total, wide));
    // This worker's sums, ordered by [sum][group]. The buffer receives them in this order or, if
    // the sums are scattered, as parts ordered by [worker][sum][group][member].
    std::vector<Tensor> of_node;
    for (const std::size_t s : together.sums) {
      for (const std::vector<int>& group : groups) {
        std::vector<Tensor> values;
        for (int i = node.first; i < node.first + node.count; ++i) {
          const int position = group[static_cast<std::size_t>(i)];
          const Tensor value =
              sums[s].own[static_cast<std::size_t>(position - first_own())].to(Device{});
          values.push_back(wide == together.dtype ? value : cast(value, wide));
        }
        of_node.push_back(reduce_values(&services_, ReduceOp::kSum, values, Device{}));
      }
    }
    std::byte* to = buffer.data();
    const int count = num_local * static_cast<int>(num_workers);  // number of members of a group
    for (int first = 0; first < count; first += together.is_scattered ? num_local : count) {
      for (std::size_t i = 0; i < of_node.size(); ++i) {
        const MeshSum& sum = sums[together.sums[i / groups.size()]];
        for (int k = 0; k < (together.is_scattered ? num_local : 1); ++k) {
          const Tensor part = together.is_scattered
                                  ? part_along(of_node[i], sum.dim, count, first + k)
                                  : of_node[i];
          to = std::ranges::copy(part.bytes(), to).out;
        }
      }
    }
    elements.emplace_back(buffer.data(), total, wide);
  }
  if (together.is_scattered) {
    together.counts.assign(num_workers, total / num_workers);
    together.own = together.partials->make_buffer(total / num_workers, wide);
    together.handle = together.partials->start_reduce_scatter(
        elements, {together.own.data(), total / num_workers, wide}, together.counts,
        {.name = name});
  } else {
    together.handle = together.partials->start_all_reduce(elements, {.name = name});
  }
  std::vector<MeshSum> shapes;  // copies of the sums; each keeps only its first value
  for (const std::size_t s : together.sums) {
    shapes.push_back({sums[s].axes, sums[s].parts, sums[s].dim, {sums[s].own.front()}});
  }
  together.keep = [this, &together, groups, wide, shapes = std::move(shapes)](
                      const Tensor& sum, std::vector<std::vector<Tensor>>& results) {
    const NoDeviceScope here;
    std::int64_t next = 0;
    const auto take = [&](const Shape& shape) {
      const Tensor value = sum.detached_rows(next, shape.num_elements()).detached_reshape(shape);
      next += shape.num_elements();
      return wide == together.dtype ? value : cast(value, together.dtype);
    };
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const Shape& shape = shapes[i].own.front().shape();
      const int count = grid_.size(shapes[i].parts);
      std::vector<Tensor>& by_position = results[together.sums[i]];
      by_position.resize(static_cast<std::size_t>(num_own()));
      for (const std::vector<int>& group : groups) {
        const Tensor whole = together.is_scattered ? Tensor() : take(shape);
        for (const int position : group) {
          const Tensor part =
              together.is_scattered
                  ? take(shape.with_dim(shapes[i].dim, shape.dim(shapes[i].dim) / count))
                  : part_along(whole, shapes[i].dim, count, grid_.index(position, shapes[i].parts));
          by_position[static_cast<std::size_t>(position - first_own())] =
              part.to(device_of(position));
        }
      }
    }
  };
}

std::shared_ptr<MeshSums> MeshGroups::start_sums(const std::vector<MeshSum>& sums,
                                                 const std::string& name) {
  auto started = std::make_shared<MeshSums>();
  started->results_.resize(sums.size());
  for (std::size_t s = 0; s < sums.size(); ++s) {
    const MeshSum& sum = sums[s];
    const Workers& workers = workers_of(sum.axes);
    if (!workers.communicator || !workers.are_in_order) {
      started->results_[s] = workers.communicator ? sum_gathered(sum, name) : sum_here(sum);
      continue;
    }
    const bool is_scattered = sum.parts == sum.axes;
    const DType dtype = sum.own.front().dtype();
    const auto same = [&](const auto& each) {
      return each->axes == sum.axes && each->is_scattered == is_scattered && each->dtype == dtype;
    };
    auto found = std::ranges::find_if(started->over_workers_, same);
    if (found == started->over_workers_.end()) {
      started->over_workers_.push_back(std::make_unique<MeshSums::OverWorkers>(
          MeshSums::OverWorkers{.axes = sum.axes, .is_scattered = is_scattered, .dtype = dtype}));
      found = std::prev(started->over_workers_.end());
    }
    (*found)->sums.push_back(s);
  }
  for (const auto& together : started->over_workers_) start_over_workers(*together, sums, name);
  return started;
}

std::vector<Tensor> MeshGroups::combine(AxisSet axes, ReduceOp op, const std::vector<Tensor>& own,
                                        const std::string& name) {
  const std::vector<std::vector<Tensor>> values = gather(axes, own, name);
  std::map<int, Tensor> results;  // keyed by the first position of the group
  std::vector<Tensor> by_position;
  for (int p = 0; p < num_own(); ++p) {
    const Device device = device_of(first_own() + p);
    Tensor& result = results[grid_.group(first_own() + p, axes).front()];
    if (!result.defined()) {
      result = reduce_values(&services_, op, values[static_cast<std::size_t>(p)], device);
    }
    by_position.push_back(result.to(device));
  }
  return by_position;
}

const char* to_string(ExchangeKind kind) {
  switch (kind) {
    case ExchangeKind::kAllReduce:
      return "all_reduce";
    case ExchangeKind::kAllGather:
      return "all_gather";
    case ExchangeKind::kReduceScatter:
      return "reduce_scatter";
    case ExchangeKind::kAllToAll:
      return "all_to_all";
    case ExchangeKind::kSendReceive:
      return "send_receive";
    case ExchangeKind::kBroadcast:
      return "broadcast";
    case ExchangeKind::kReduce:
      break;
  }
  return "reduce";
}

void MeshGroups::count(ExchangeKind kind, AxisSet axes, std::uint64_t bytes) {
  const auto size = static_cast<std::uint64_t>(grid_.size(axes));
  if (size == 1) return;
  auto senders = static_cast<std::uint64_t>(grid_.num_positions());
  std::uint64_t of_each = (size - 1) * bytes / size;  // each sends a slice to every other member
  if (kind == ExchangeKind::kAllReduce) of_each *= 2;
  if (kind == ExchangeKind::kSendReceive) of_each = bytes;
  if (kind == ExchangeKind::kAllGather) of_each = (size - 1) * bytes;
  if (kind == ExchangeKind::kBroadcast || kind == ExchangeKind::kReduce) {
    of_each = (size - 1) * bytes;
    senders /= size;  // one sender or receiver per group
  }
  MeshTraffic& traffic = traffic_[to_string(kind)];
  traffic.bytes += senders * of_each;
  traffic.busiest_bytes += of_each;
}

}  // namespace tutti::internal
