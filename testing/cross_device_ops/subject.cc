// Groups of registered operations.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/testing/cross_device_ops/subject.h"

#include "cross_device_ops/in_process/in_process_transport.h"
#include "tutti/cross_device_ops/key_value_store.h"
#include "tutti/cross_device_ops/registry.h"

namespace tutti::conformance {
namespace {

std::unique_ptr<CrossDeviceOps> make_local(const CrossDeviceOpsSpec& spec,
                                           const std::vector<Device>& devices) {
  try {
    return build_cross_device_ops(spec, {static_cast<int>(devices.size()), 0, devices});
  } catch (const Error& error) {
    // Some want GPUs, and one for each replica.
    if (spec.name != "nccl" || error.code() != ErrorCode::kInvalidArgument) throw;
    throw Error(ErrorCode::kUnimplemented, error.message());
  }
}

}  // namespace

Subject::Subject(const std::string& registered_name) : name(registered_name) {
  const CrossDeviceOpsSpec spec = make_cross_device_ops(name);
  local = [spec](const std::vector<Device>& replicas) { return make_local(spec, replicas); };
  spread = [name = name](int world, Duration timeout) -> RankFactory {
    const auto transports = in_process_transports(world);
    const auto store = std::make_shared<InProcessStore>();
    const CommunicatorOptions options{.algorithm = name, .timeout = timeout};
    return [=](int rank) {
      const Group group{world, rank, {Device{}}, store, transports[static_cast<std::size_t>(rank)]};
      return make_communicator(group, options);
    };
  };
  if (name != "canonical") return;  // others send messages between threads, too: that is spread
  threads = [](int world, Duration timeout) -> RankFactory {
    const auto ranks = std::make_shared<std::vector<std::unique_ptr<Communicator>>>(
        in_process_communicators(world, {.timeout = timeout}));
    return [ranks](int rank) { return std::move((*ranks)[static_cast<std::size_t>(rank)]); };
  };
}

void Subject::use_devices(std::vector<Device> of_groups) {
  devices = std::move(of_groups);
  if (devices.empty() || devices.front().type == DeviceType::kCpu) return;
  spread = nullptr;
  threads = nullptr;
}

}  // namespace tutti::conformance
