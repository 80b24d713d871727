// Groups of the operations that the registry knows.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/in_process/in_process_transport.h"
#include "tutti/cross_device_ops/key_value_store.h"
#include "tutti/cross_device_ops/registry.h"
#include "tutti/testing/cross_device_ops/subject.h"

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

RankFactory make_spread(const std::string& name, int world, Duration timeout) {
  const auto transports = in_process_transports(world);
  const auto store = std::make_shared<InProcessStore>();
  const CommunicatorOptions options{.algorithm = name, .timeout = timeout};
  return [=](int rank) {
    const Group group{
        world, rank, {{DeviceType::kCpu, 0}}, store, transports[static_cast<std::size_t>(rank)]};
    return make_communicator(group, options);
  };
}

RankFactory make_threads(const std::string& name, int world, Duration timeout) {
  // Other names send messages between threads: that is SPREAD.
  if (name != "canonical") {
    fail(ErrorCode::kUnimplemented, "in_process_communicators: ", name,
         " does not work on shared memory; expected canonical");
  }
  auto made = std::make_shared<Communicators>(
      in_process_communicators(world, {.algorithm = name, .timeout = timeout}));
  return [made](int rank) { return std::move((*made)[static_cast<std::size_t>(rank)]); };
}

}  // namespace

Subject::Subject(const std::string& registered_name)
    : Subject(registered_name, SubjectFactories{}) {
  const CrossDeviceOpsSpec spec = make_cross_device_ops(registered_name);
  factories_.local = [this, spec](int world) { return make_local(spec, devices(world)); };
  factories_.spread = [registered_name](int world, Duration timeout) {
    return make_spread(registered_name, world, timeout);
  };
  factories_.threads = [registered_name](int world, Duration timeout) {
    return make_threads(registered_name, world, timeout);
  };
}

}  // namespace tutti::conformance
