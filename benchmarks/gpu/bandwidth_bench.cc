// Measures the throughput, in bytes per second, of copies within a device and of optimizer steps.
// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "benchmarks/gpu/gpu_bench_timing.h"
#include "benchmarks/tutti_bench/bench_memory.h"
#include "tensor/device_backend.h"
#include "tensor/gpu_device.h"
#include "tutti/optimizer/adam.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/strategy/strategies.h"
#include "tutti/tensor/gpu/gpus.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::benchmarks {
namespace {

/// Waits until the device has finished its work.
void finish_on(const Device& device) {
  if (device.type == DeviceType::kGpu) GpuDevice::of(device).synchronize();
}

void copy_within(const Device& device, const MutableTensor& to, const MutableTensor& from) {
  if (device.type == DeviceType::kCpu) {
    std::memcpy(to.data(), from.data(), to.num_bytes());
    return;
  }
  GpuDevice& gpu = GpuDevice::of(device);
  const int ordinal = gpu.description().ordinal;
  gpu.with_context([&](DeviceContext& context) {
    context.copy_from_peer(to.address(), from.address(), ordinal, to.num_bytes(),
                           StreamId::kCompute);
  });
}

Json with_bandwidth(Json seconds, double bytes) {
  const double median = seconds.at("median").as_double();
  Json report = Json::object();
  report.set("bytes", bytes).set("seconds", std::move(seconds));
  report.set("bytes_per_second", bytes / std::max(median, 1e-12));
  return report;
}

/// A network's variables and gradients, on the device.
struct UpdateSubject {
  std::vector<Variable> variables;
  std::vector<Gradient> gradients;
};

UpdateSubject make_subject(const BenchArguments& arguments, const Device& device) {
  UpdateSubject subject;
  for (const std::size_t count :
       bench::scaled_gradients(arguments.gradients, static_cast<std::size_t>(arguments.elements))) {
    const Shape shape{static_cast<std::int64_t>(count)};
    subject.variables.emplace_back(Tensor::full(shape, 1.0, DType::kFloat32, device));
    subject.gradients.emplace_back(Tensor::full(shape, 1e-3, DType::kFloat32, device));
  }
  return subject;
}

}  // namespace

Json copy_bench(const BenchArguments& arguments) {
  const Device device = parse_devices(arguments.devices).at(0);
  const Shape shape{arguments.elements};
  const MutableTensor from(shape, DType::kFloat32, device), to(shape, DType::kFloat32, device);
  if (device.type == DeviceType::kCpu) {
    std::memset(from.data(), 1, from.num_bytes());
  }
  Json seconds = seconds_per_call(
      arguments, [&] { copy_within(device, to, from); }, [&] { finish_on(device); });
  return with_bandwidth(std::move(seconds), 2.0 * static_cast<double>(to.num_bytes()));
}

Json update_bench(const BenchArguments& arguments) {
  const Device device = parse_devices(arguments.devices).at(0);
  OneDeviceStrategy strategy(device);
  auto scope = strategy.scope();
  const UpdateSubject subject = make_subject(arguments, device);
  std::unique_ptr<Optimizer> optimizer;
  if (arguments.optimizer == "adam") {
    optimizer = std::make_unique<Adam>(subject.variables, AdamOptions{});
  } else {
    optimizer = std::make_unique<Sgd>(subject.variables,
                                      SgdOptions{.learning_rate = 1e-3, .momentum = 0.9});
  }
  Json seconds = seconds_per_call(
      arguments, [&] { strategy.run([&] { optimizer->apply_gradients(subject.gradients); }); },
      [&] { finish_on(device); });
  // Number of 4-byte accesses per element: weights and slots are read and written, gradients are
  // read.
  const double per_element = arguments.optimizer == "adam" ? 7.0 : 5.0;
  Json report = with_bandwidth(std::move(seconds),
                               4.0 * per_element * static_cast<double>(arguments.elements));
  report.set("variables", static_cast<std::int64_t>(subject.variables.size()));
  return report;
}

}  // namespace tutti::benchmarks
