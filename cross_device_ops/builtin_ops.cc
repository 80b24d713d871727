// The operations that this build brings: the list that the registry starts with.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/builtin_ops.h"

#include "tutti/cross_device_ops/algorithms/scheduled_ops.h"
#include "tutti/cross_device_ops/local/canonical.h"
#include "tutti/cross_device_ops/local/reduction_to_one_device.h"
#include "tutti/cross_device_ops/mpi/mpi_engine.h"
#if TUTTI_NCCL
#include "tutti/cross_device_ops/nccl/nccl_ops.h"
#endif

namespace tutti::internal {
namespace {

template <class Ops>
std::unique_ptr<CrossDeviceOps> make(const Group&, const CommunicationOptions&) {
  return std::make_unique<Ops>();
}

CrossDeviceOpsFactory scheduled(std::string_view algorithm) {
  return [algorithm](const Group&, const CommunicationOptions&) {
    return std::make_unique<ScheduledOps>(algorithm);
  };
}

#if TUTTI_NCCL
std::unique_ptr<CrossDeviceOps> make_nccl(const Group& group, const CommunicationOptions& options) {
  return make_nccl_ops(group, options);
}
#else
constexpr const char* kNoNccl =
    "nccl: this build has no NCCL; try configuring with -DTUTTI_CUDA=ON and NCCL 2.18 or later "
    "(-DNCCL_ROOT)";
std::unique_ptr<CrossDeviceOps> make_nccl(const Group&, const CommunicationOptions&) {
  fail(ErrorCode::kUnimplemented, kNoNccl, ", or another operation such as canonical");
}
#endif

// Between processes there is no object for all replicas: communicators have engines instead.
std::unique_ptr<CrossDeviceOps> make_mpi(const Group&, const CommunicationOptions&) {
  const std::string reason = why_no_mpi();
  if (!reason.empty()) throw Error(ErrorCode::kUnimplemented, reason);
  fail(ErrorCode::kUnimplemented, "mpi: combines values of processes, one rank each; expected a ",
       "communicator of such ranks (make_communicator()); try another operation such as canonical "
       "for the replicas of one process");
}

}  // namespace

std::vector<std::pair<std::string, CrossDeviceOpsFactory>> builtin_cross_device_ops() {
  return {{"canonical", make<Canonical>},
          {"hierarchical_copy", scheduled("hierarchical_copy")},
          {"reduction_to_one_device", make<ReductionToOneDevice>},
          {"ring", scheduled("ring")},
          {"halving_doubling", scheduled("halving_doubling")},
          {"tree", scheduled("tree")},
          {"auto", make<AutoOps>},
          {"nccl", make_nccl},
          {"mpi", make_mpi}};
}

#if !TUTTI_NCCL
std::string why_no_nccl() { return kNoNccl; }
#endif

}  // namespace tutti::internal
