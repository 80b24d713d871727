// Choice of an operation for replicas on GPUs, and NCCL groups over the GPUs of several ranks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/cross_device_ops/registry.h"
#include "tutti/tensor/device.h"

namespace tutti {
class Communicator;
}  // namespace tutti

namespace tutti::internal {

/// Two replicas that share one GPU.
struct SharedGpu {
  std::size_t first = 0, second = 0;  // numbers of the replicas
  int ordinal = 0;
};
/// Returns the first two replicas whose devices are (parts of) the same GPU. Requires: all
/// `devices` are GPUs.
std::optional<SharedGpu> find_shared_gpu(std::span<const Device> devices);

/// Returns true if each of these GPUs can read the memory of all other GPUs.
bool are_connected(std::span<const Device> devices);

struct GpuChoice {
  std::string name;  // name of the operation
  std::string why;
};
/// Chooses the operation for replicas on these GPUs if the user names none: nccl if each replica
/// has its own GPU and NCCL is available; otherwise an operation that reads peer memory.
GpuChoice choose_for_gpus(std::span<const Device> devices);

/// Key of the agreed NCCL id in Group::store.
inline constexpr std::string_view kNcclIdKey = "nccl/agreed_id";
/// Returns a new id for an NCCL group. Throws kUnavailable if NCCL is missing.
std::string make_nccl_id();
/// Returns why "nccl" cannot be used here, in one line; empty if it can.
std::string why_no_nccl();

/// Gathers one string from each rank; returns the strings in rank order. Collective. Compares the
/// first 47 characters of `name` across the ranks. Throws the same errors as Communicator.
std::vector<std::string> gather_texts(Communicator& communicator, std::string_view own,
                                      std::string_view name);

/// Signature of a transport-independent gather_texts().
using GatherTexts =
    std::function<std::vector<std::string>(std::string_view own, std::string_view name)>;

/// A rank's report about its GPUs. All ranks make the same decision, because each bases it on the
/// reports of all ranks.
struct GpusOfRank {
  std::string reason;  // why the rank cannot use NCCL, such as "has no NCCL (...)"; "" if it can
  std::string names;   // machine and GPU per device, to detect shared GPUs

  /// Returns `reason` and `names`, one per line.
  std::string to_text() const { return reason + "\n" + names; }
  static GpusOfRank from_text(const std::string& text);
};
/// Returns the report of a rank with these devices, which need not be GPUs.
GpusOfRank gpus_for_nccl(std::span<const Device> devices);
/// Returns the reason, as "<who> 1 has ...", if any rank cannot use NCCL; empty if all can.
std::string why_not_all(std::string_view who, std::span<const GpusOfRank> ranks);

/// Creates the operation "nccl" over `group`. It needs neither a store nor a transport, because
/// `gather` distributes NCCL's id as a string. Collective. If one rank fails, all ranks throw its
/// error, which names that rank: "rank 1: nccl: ...".
std::unique_ptr<CrossDeviceOps> connect_by_nccl(std::string_view who, Group group, Duration timeout,
                                                const GatherTexts& gather);

}  // namespace tutti::internal
