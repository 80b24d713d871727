// Which GPUs replicas are on and which operation suits that; the GPUs of several ranks as one group
// of NCCL.
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

/// Two replicas on one GPU.
struct SharedGpu {
  std::size_t first = 0, second = 0;  // replicas
  int ordinal = 0;
};
/// The first two of `devices`, all GPUs, that are parts of the same one.
std::optional<SharedGpu> find_shared_gpu(std::span<const Device> devices);

/// Whether each of these GPUs can read the memory of each other.
bool are_connected(std::span<const Device> devices);

struct GpuChoice {
  std::string name;  // of the operation
  std::string why;
};
/// The operation for replicas on these GPUs when none is named: nccl, where each replica has its
/// own GPU and NCCL is there; else one that reads peers' memory.
GpuChoice choose_for_gpus(std::span<const Device> devices);

/// The key of Group::store with an id of NCCL on which the ranks have agreed.
inline constexpr std::string_view kNcclIdKey = "nccl/agreed_id";
/// Returns a new id for a group of NCCL. Throws kUnavailable where there is no NCCL.
std::string make_nccl_id();
/// Why "nccl" cannot be used here, in one line; empty when it can.
std::string why_no_nccl();

/// A text of each rank, by rank. `name` (as in all calls, its first 47 characters) is compared.
/// Errors of Communicator.
std::vector<std::string> gather_texts(Communicator& communicator, std::string_view own,
                                      std::string_view name);

/// The same, however it is done.
using GatherTexts =
    std::function<std::vector<std::string>(std::string_view own, std::string_view name)>;

/// The report of a rank on its GPUs. All ranks decide from the reports of all, so they agree.
struct GpusOfRank {
  std::string reason;  // "has ...": why they cannot be ranks of NCCL; "" if they can
  std::string names;   // of machine and GPU, to find those that two ranks use

  /// Two lines.
  std::string to_text() const { return reason + "\n" + names; }
  static GpusOfRank from_text(const std::string& text);
};
/// Of devices that may be no GPUs.
GpusOfRank gpus_for_nccl(std::span<const Device> devices);
/// "rank 1 has ...": the first reason why not all can, with `who` for "rank"; "" if they can.
std::string why_not_all(std::string_view who, std::span<const GpusOfRank> ranks);

/// The operation "nccl" over `group`, without store and transport: NCCL's id travels as a text.
/// Collective; what one rank throws, all throw, naming it: "rank 1: nccl: ...".
std::unique_ptr<CrossDeviceOps> connect_by_nccl(std::string_view who, Group group, Duration timeout,
                                                const GatherTexts& gather);

}  // namespace tutti::internal
