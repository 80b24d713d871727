// The GPUs of all workers as one group of NCCL.
// SPDX-License-Identifier: Apache-2.0
//
// Everything is decided by what all workers have told all, so that they decide alike.
#include "tutti/strategy/multi_worker/worker_team.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "tutti/core/logging.h"
#include "tutti/core/process_probe.h"
#include "tutti/cross_device_ops/gpu_placement.h"
#include "tutti/cross_device_ops/registry.h"
#include "tutti/tensor/gpu/gpu_device.h"

namespace tutti::internal {
namespace {

constexpr const char* kWho = "multi_worker_mirrored";

bool is_gpu(const Device& device) { return device.type == DeviceType::kGpu; }

/// Why this worker cannot take part, in a line; "" if it can.
std::string why_not(const std::vector<Device>& devices) {
  if (!std::ranges::all_of(devices, is_gpu)) {
    return concat("has replicas on ", join(devices), ", and NCCL works on GPUs alone");
  }
  if (const auto shared = find_shared_gpu(devices)) {
    return concat("has replicas ", shared->first, " and ", shared->second, " on one GPU, ",
                  shared->ordinal, ", which NCCL refuses");
  }
  const std::string missing = why_no_nccl();
  return missing.empty() ? missing : concat("has no NCCL (", missing, ")");
}

/// "<machine>/0000:02:00.0" of each GPU, to find those that two workers use.
std::string names_of_gpus(const std::vector<Device>& devices) {
  const std::string& machine = internal::this_process().boot_id;
  if (machine.empty()) return "";
  std::string names;
  for (const Device& device : devices) {
    if (!is_gpu(device)) continue;
    names += concat(machine, "/", GpuDevice::of(device).description().properties.pci_bus_id, " ");
  }
  return names;
}

struct Told {
  int use = 0;
  bool any_gpu = false;
  std::string reason;  // why not; "" if it can
  std::string gpus;
};

std::string text_of(const WorkerGpus& own) {
  const bool asks = own.use != NcclUse::kNever;
  return concat(static_cast<int>(own.use), " ", std::ranges::any_of(own.devices, is_gpu) ? 1 : 0,
                "\n", asks ? why_not(own.devices) : "", "\n",
                asks ? names_of_gpus(own.devices) : "");
}

Told told_by(const std::string& text) {
  Told told;
  std::istringstream lines(text);
  lines >> told.use >> told.any_gpu;
  lines.ignore();
  std::getline(lines, told.reason);
  std::getline(lines, told.gpus);
  return told;
}

/// "worker 1 has ...": the first reason why not all can; "" if they can.
std::string why_not_all(const std::vector<Told>& workers) {
  std::map<std::string, std::size_t> users;
  for (std::size_t w = 0; w < workers.size(); ++w) {
    if (!workers[w].reason.empty()) return concat("worker ", w, " ", workers[w].reason);
    std::istringstream names(workers[w].gpus);
    for (std::string name; names >> name;) {
      const auto [found, is_new] = users.emplace(name, w);
      if (is_new) continue;
      return concat("workers ", found->second, " and ", w, " both use the GPU ",
                    name.substr(name.find('/') + 1), " of one machine, which NCCL refuses");
    }
  }
  return "";
}

/// The id of NCCL's group on its way from worker 0 to the others: set by it, waited for by them.
class IdByMessage final : public KeyValueStore {
 public:
  explicit IdByMessage(WorkerTeam& team) : team_(team) {}
  void set(std::string_view, std::string_view value) override { exchange(std::string(value)); }
  std::optional<std::string> get(std::string_view) override { return std::nullopt; }
  std::string wait(std::string_view, TimePoint) override { return exchange(""); }
  /// The others wait for what worker 0 has failed to make.
  void end() {
    if (team_.worker() == 0 && !done_) exchange("");
  }

 private:
  std::string exchange(const std::string& value) {
    done_ = true;
    return team_.broadcast_text(value, 0, "NCCL's id");
  }

  WorkerTeam& team_;
  bool done_ = false;
};

std::unique_ptr<CrossDeviceOps> connect(WorkerTeam& team, const WorkerGpus& own) {
  const auto store = std::make_shared<IdByMessage>(team);
  std::unique_ptr<CrossDeviceOps> ops;
  std::string failure;
  ErrorCode code = ErrorCode::kUnavailable;
  try {
    ops = build_cross_device_ops(make_cross_device_ops("nccl", {.timeout = own.timeout}),
                                 Group{.world_size = team.num_replicas(),
                                       .first_rank = team.first_replica(),
                                       .local_devices = own.devices,
                                       .store = store});
  } catch (const Error& error) {
    store->end();
    failure = error.message();
    code = error.code();
  }
  const std::vector<std::string> failures = team.gather_texts(failure, "connect GPUs by NCCL");
  for (std::size_t w = 0; w < failures.size(); ++w) {
    if (failures[w].empty()) continue;
    fail(failure.empty() ? ErrorCode::kUnavailable : code, kWho, ": worker ", w, ": ", failures[w],
         "; try implementation CANONICAL");
  }
  return ops;
}

}  // namespace

std::unique_ptr<CrossDeviceOps> connect_worker_gpus(WorkerTeam& team, const WorkerGpus& own) {
  std::vector<Told> workers;
  for (const std::string& text : team.gather_texts(text_of(own), "who has GPUs")) {
    workers.push_back(told_by(text));
    if (workers.back().use == workers.front().use) continue;
    fail(ErrorCode::kInvalidArgument, kWho, ": worker ", workers.size() - 1,
         " names another implementation of communication than worker 0 (AUTO, NCCL, or another); "
         "expected the same on all workers");
  }
  if (own.use == NcclUse::kNever) return nullptr;
  const std::string reason = why_not_all(workers);
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
