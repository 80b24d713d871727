// Strategies of one process: their devices, and where their variables are.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/strategies.h"

#include <cstdlib>

#include "core/process_probe.h"
#include "tutti/core/json.h"
#include "tutti/core/logging.h"

namespace tutti {
namespace {

/// The tasks of TF_CONFIG that train together; 1 where this process is none of them.
std::size_t workers_in(const Json& config) {
  const std::string& own = config.at("task").at("type").as_string();
  if (own != "chief" && own != "worker") return 1;
  std::size_t count = 0;
  for (const char* job : {"chief", "worker"}) {
    const Json* tasks = config.at("cluster").find(job);
    if (tasks != nullptr)
      count += tasks->is_object() ? tasks->as_object().size() : tasks->as_array().size();
  }
  return count;
}

/// The processes that TF_CONFIG or a launcher's variables name. TF_CONFIG is not read by a
/// resolver, which would load gRPC into programs that join nothing.
internal::LaunchedCopies copies_of_this_program() {
  const char* const text = std::getenv("TF_CONFIG");
  if (text == nullptr || *text == '\0') {
    return internal::launched_copies([](const char* name) -> std::optional<std::string> {
      const char* const value = std::getenv(name);
      return value ? std::optional<std::string>(value) : std::nullopt;
    });
  }
  try {
    return {static_cast<int>(workers_in(Json::parse(text, "TF_CONFIG"))), "TF_CONFIG"};
  } catch (const Error&) {
    return {};  // mistakes in it are for those who read it to join
  }
}

/// Warns where a launcher started workers whom this process will not meet; returns the options.
LocalStrategyOptions checked_for_workers(LocalStrategyOptions options) {
  const std::string warning =
      internal::warning_of_copies(copies_of_this_program(), "MultiWorkerMirroredStrategy");
  if (!warning.empty()) log_warning_once(warning);
  return options;
}

LocalStrategyOptions options_for(Device device, const CommunicationOptions& communication) {
  LocalStrategyOptions options;
  options.cross_device_ops.options = communication;
  options.devices = DeviceList(std::vector<Device>{device});
  return options;
}

Device parameter_device_for(const CentralStorageStrategy& strategy,
                            const std::optional<Device>& named) {
  if (named) {
    require_available(*named);
    return *named;
  }
  const std::vector<Device> devices = strategy.worker_devices();
  const bool is_one_gpu = devices.size() == 1 && devices.front().type == DeviceType::kGpu;
  return is_one_gpu ? devices.front() : Device{};
}

}  // namespace

MirroredStrategy::MirroredStrategy(LocalStrategyOptions options)
    : LocalStrategy("mirrored", checked_for_workers(std::move(options))) {}

OneDeviceStrategy::OneDeviceStrategy(Device device, const CommunicationOptions& communication)
    : LocalStrategy("one_device", checked_for_workers(options_for(device, communication))) {}

CentralStorageStrategy::CentralStorageStrategy(CentralStorageOptions options)
    : LocalStrategy("central_storage", checked_for_workers(std::move(options.local))),
      parameter_device_(parameter_device_for(*this, options.parameter_device)) {
  const auto devices = replica_devices();
  placement_ = std::make_shared<const Placement>(
      Placement::central({devices.begin(), devices.end()}, parameter_device_));
}

std::shared_ptr<VariableStorage> CentralStorageStrategy::create_storage(const Tensor& initial_value,
                                                                        VariableOptions options) {
  if (is_on_read(options)) return create_on_read_storage(initial_value, std::move(options));
  return create_mirrored_storage(initial_value, std::move(options), placement_);
}

}  // namespace tutti
