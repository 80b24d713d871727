// Implements TpuStrategy: chooses its XLA devices.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/tpu_strategy.h"

#include "tensor/xla/pjrt_client.h"

namespace tutti {
namespace {

int checked_replicas(const LocalStrategyOptions& options) {
  const int available = internal::PjrtClient::get().num_devices();
  const XlaDevices& devices = xla_devices();
  const int wanted =
      options.replicas != 0 ? options.replicas : (devices.platform == "cpu" ? 1 : available);
  if (wanted < 1 || wanted > available) {
    fail(ErrorCode::kInvalidArgument, "TpuStrategy: expected 1 to ", available,
         " replicas, one per XLA device of ", devices.platform, ", got ", wanted,
         devices.platform == "cpu" ? "; set TUTTI_XLA_CPU_DEVICES to get more" : "");
  }
  return wanted;
}

LocalStrategyOptions with_xla_devices(LocalStrategyOptions options) {
  std::vector<Device>& devices = options.devices.devices;
  for (const Device& device : devices) {
    if (device.type == DeviceType::kXla) continue;
    fail(ErrorCode::kInvalidArgument,
         "TpuStrategy: devices: expected only XLA devices (xla:0, ...), got ", device,
         "; set only `replicas`, or use MirroredStrategy");
  }
  if (!devices.empty()) return options;
  const int replicas = checked_replicas(options);
  for (int r = 0; r < replicas; ++r) devices.push_back({DeviceType::kXla, r});
  return options;
}

}  // namespace

TpuClusterResolver::TpuClusterResolver(std::string_view tpu) {
  if (tpu.empty() || tpu == "local") return;
  fail(ErrorCode::kUnimplemented, "TpuClusterResolver: expected '' or 'local' (this host), got '",
       tpu,
       "': TPUs on other hosts or from Google Cloud's API are not supported; run the program on "
       "the TPU's own host");
}

int TpuClusterResolver::num_devices() const { return internal::PjrtClient::get().num_devices(); }
std::string TpuClusterResolver::platform() const { return internal::PjrtClient::get().platform(); }

TpuStrategy::TpuStrategy(LocalStrategyOptions options)
    : Strategy("tpu", with_xla_devices(std::move(options))) {}

TpuStrategy::TpuStrategy(const TpuClusterResolver&, LocalStrategyOptions options)
    : TpuStrategy(std::move(options)) {}

std::shared_ptr<VariableStorage> TpuStrategy::create_storage(const Tensor& initial_value,
                                                             VariableOptions options) {
  return extended().create_storage(initial_value, std::move(options));
}

void TpuStrategy::run_on_replicas(const std::function<void(ReplicaContext&)>& body) {
  extended().run(body);
}

}  // namespace tutti
