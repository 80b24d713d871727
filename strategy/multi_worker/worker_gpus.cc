// The GPUs of all workers as one group of NCCL.
// SPDX-License-Identifier: Apache-2.0
//
// Everything is decided by what all workers have told all, so that they decide alike.
#include "strategy/multi_worker/worker_team.h"

#include <algorithm>
#include <sstream>

#include "cross_device_ops/gpu_ranks.h"
#include "tutti/core/logging.h"

namespace tutti::internal {
namespace {

constexpr const char* kWho = "multi_worker_mirrored";

bool is_gpu(const Device& device) { return device.type == DeviceType::kGpu; }

struct Told {
  int use = 0;
  bool any_gpu = false;
  std::string gpus;  // GpusOfRank::to_text()
};

std::string text_of(const WorkerGpus& own) {
  const bool asks = own.use != NcclUse::kNever;
  return concat(static_cast<int>(own.use), " ", std::ranges::any_of(own.devices, is_gpu) ? 1 : 0,
                "\n", (asks ? gpus_for_nccl(own.devices) : GpusOfRank()).to_text());
}

Told told_by(const std::string& text) {
  Told told;
  std::istringstream(text) >> told.use >> told.any_gpu;
  told.gpus = text.substr(text.find('\n') + 1);
  return told;
}

std::unique_ptr<CrossDeviceOps> connect(WorkerTeam& team, const WorkerGpus& own) {
  try {
    return connect_by_nccl("worker",
                           Group{.world_size = team.num_replicas(),
                                 .first_rank = team.first_replica(),
                                 .local_devices = own.devices},
                           own.timeout, [&](std::string_view text, std::string_view name) {
                             return team.gather_texts(text, name);
                           });
  } catch (const Error& error) {
    throw Error(error.code(),
                concat(kWho, ": ", error.message(), "; try implementation CANONICAL"));
  }
}

}  // namespace

std::unique_ptr<CrossDeviceOps> connect_worker_gpus(WorkerTeam& team, const WorkerGpus& own) {
  std::vector<Told> workers;
  std::vector<GpusOfRank> gpus;
  for (const std::string& text : team.gather_texts(text_of(own), "who has GPUs")) {
    workers.push_back(told_by(text));
    gpus.push_back(GpusOfRank::from_text(workers.back().gpus));
    if (workers.back().use == workers.front().use) continue;
    fail(ErrorCode::kInvalidArgument, kWho, ": worker ", workers.size() - 1,
         " names another implementation of communication than worker 0 (AUTO, NCCL, or another); "
         "expected the same on all workers");
  }
  if (own.use == NcclUse::kNever) return nullptr;
  const std::string reason = why_not_all("worker", gpus);
  if (own.use == NcclUse::kAlways && !reason.empty()) {
    fail(ErrorCode::kInvalidArgument, kWho, ": implementation NCCL: ", reason,
         "; expected a GPU of its own for each replica, and NCCL 2.18 or later, on every worker; "
         "try AUTO or CANONICAL");
  }
  const bool says = own.use == NcclUse::kIfAllCan && team.worker() == 0 && team.num_workers() > 1;
  if (says && !std::ranges::any_of(workers, &Told::any_gpu)) {
    log_info(concat("sums over workers: ", team.algorithm(), ", because no replica is on a GPU"));
  } else if (says) {
    log_info(concat("sums over workers: ", reason.empty() ? "nccl" : team.algorithm(), ", because ",
                    reason.empty() ? "each replica has a GPU of its own" : reason));
  }
  return reason.empty() ? connect(team, own) : nullptr;
}

}  // namespace tutti::internal
