// Measures all_reduce of one buffer per device.
// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/gpu/gpu_bench_timing.h"
#include "tutti/cross_device_ops/registry.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::benchmarks {
namespace {

PerReplica<Tensor> buffers_of(const std::vector<Device>& devices, std::int64_t elements) {
  std::vector<Tensor> values;
  for (std::size_t r = 0; r < devices.size(); ++r) {
    const double value = static_cast<double>(r + 1);
    values.push_back(Tensor::full(Shape{elements}, value, DType::kFloat32, devices[r]));
  }
  return PerReplica<Tensor>(std::move(values));
}

/// Waits for all results by reading one element of each.
void finish(const PerReplica<Tensor>& sums) {
  for (std::size_t r = 0; r < sums.size(); ++r) sums[r].detached_rows(0, 1).item();
}

std::int64_t count_wrong(const PerReplica<Tensor>& sums) {
  const double expected = 0.5 * static_cast<double>(sums.size() * (sums.size() + 1));
  std::int64_t wrong = 0;
  for (std::size_t r = 0; r < sums.size(); ++r) {
    for (const double value : sums[r].to_doubles()) wrong += value != expected;
  }
  return wrong;
}

}  // namespace

Json all_reduce_bench(const BenchArguments& arguments) {
  const std::vector<Device> devices = parse_devices(arguments.devices);
  Group group;
  group.world_size = static_cast<int>(devices.size());
  group.local_devices = devices;
  CrossDeviceOpsSpec spec;
  if (!arguments.ops.empty()) spec = make_cross_device_ops(arguments.ops);
  const std::unique_ptr<CrossDeviceOps> ops = build_cross_device_ops(spec, group);
  const PerReplica<Tensor> values = buffers_of(devices, arguments.elements);

  PerReplica<Tensor> sums = ops->all_reduce(ReduceOp::kSum, values);
  const std::int64_t wrong = count_wrong(sums);
  Json seconds = seconds_per_call(
      arguments, [&] { sums = ops->all_reduce(ReduceOp::kSum, values); }, [&] { finish(sums); });
  const double bytes = 4.0 * static_cast<double>(arguments.elements);
  const double ranks = static_cast<double>(devices.size());
  const double algbw = bytes / std::max(seconds.at("median").as_double(), 1e-12);
  Json report = Json::object();
  report.set("ops", ops->name()).set("ranks", static_cast<std::int64_t>(devices.size()));
  report.set("bytes", bytes).set("seconds", std::move(seconds));
  report.set("algbw", algbw).set("busbw", algbw * 2.0 * (ranks - 1.0) / ranks);
  report.set("wrong", wrong);
  return report;
}

}  // namespace tutti::benchmarks
