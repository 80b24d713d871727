// Combines the GPUs of several ranks into one NCCL group.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/gpu_ranks.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <sstream>

#include "core/call_site.h"
#include "core/process_probe.h"
#include "cross_device_ops/device_work.h"
#include "tensor/gpu_device.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/tensor/gpu/gpus.h"

namespace tutti::internal {

std::optional<SharedGpu> find_shared_gpu(std::span<const Device> devices) {
  const auto ordinal = [&](std::size_t r) {
    return GpuDevice::of(devices[r]).description().ordinal;
  };
  for (std::size_t second = 1; second < devices.size(); ++second) {
    for (std::size_t first = 0; first < second; ++first) {
      if (ordinal(first) == ordinal(second)) return SharedGpu{first, second, ordinal(first)};
    }
  }
  return std::nullopt;
}

bool are_connected(std::span<const Device> devices) {
  for (const Device& reader : devices) {
    for (const Device& owner : devices) {
      if (!reaches(reader, owner)) return false;
    }
  }
  return true;
}

GpuChoice choose_for_gpus(std::span<const Device> devices) {
  if (const auto shared = find_shared_gpu(devices)) {
    return {"canonical", concat("replicas ", shared->first, " and ", shared->second, " share GPU ",
                                shared->ordinal, ", which nccl refuses")};
  }
  const std::string missing = why_no_nccl();
  if (missing.empty()) return {"nccl", "each replica has a GPU of its own"};
  if (are_connected(devices)) {
    return {"hierarchical_copy", concat("the GPUs read each other's memory; ", missing)};
  }
  return {"canonical", concat("not all GPUs read each other's memory; ", missing)};
}

namespace {

/// Number of leading bytes of a string that are sent together with its length.
constexpr std::size_t kInlineText = 248;

struct AnnouncedText {
  std::uint64_t size = 0;
  char first[kInlineText] = {};
};
static_assert(sizeof(AnnouncedText) == 256);

ConstElements text_bytes(const void* data, std::size_t size) {
  return {static_cast<const std::byte*>(data), size, DType::kUInt8};
}
Elements text_bytes(void* data, std::size_t size) {
  return {static_cast<std::byte*>(data), size, DType::kUInt8};
}

bool is_any_gpu(const Device& device) { return device.type == DeviceType::kGpu; }

}  // namespace

std::vector<std::string> gather_texts(Communicator& communicator, std::string_view own,
                                      std::string_view name) {
  AnnouncedText announcement{own.size()};
  std::memcpy(announcement.first, own.data(), std::min(own.size(), kInlineText));
  std::vector<AnnouncedText> all(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(text_bytes(&announcement, sizeof announcement),
                          text_bytes(all.data(), all.size() * sizeof announcement), {},
                          {.name = name}, CallSite::current());
  const bool is_short =
      std::ranges::all_of(all, [](const AnnouncedText& each) { return each.size <= kInlineText; });
  std::vector<std::size_t> sizes;
  for (const AnnouncedText& each : all) sizes.push_back(each.size);
  std::vector<std::string> texts;
  if (is_short) {
    for (const AnnouncedText& each : all) texts.emplace_back(each.first, each.size);
    return texts;
  }
  std::string joined(std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}), '\0');
  communicator.all_gather(text_bytes(own.data(), own.size()),
                          text_bytes(joined.data(), joined.size()), sizes, {.name = name},
                          CallSite::current());
  std::size_t first = 0;
  for (const std::size_t size : sizes) {
    texts.push_back(joined.substr(first, size));
    first += size;
  }
  return texts;
}

GpusOfRank GpusOfRank::from_text(const std::string& text) {
  GpusOfRank gpus;
  std::istringstream lines(text);
  std::getline(lines, gpus.reason);
  std::getline(lines, gpus.names);
  return gpus;
}

GpusOfRank gpus_for_nccl(std::span<const Device> devices) {
  GpusOfRank gpus;
  // Appends "<machine>/0000:02:00.0 " for each GPU.
  const std::string& machine = this_process().boot_id;
  for (const Device& device : devices) {
    if (!is_any_gpu(device) || machine.empty()) continue;
    const PhysicalDevice& properties = GpuDevice::of(device).description().properties;
    gpus.names += concat(machine, "/", properties.pci_bus_id, " ");
  }
  if (!std::ranges::all_of(devices, is_any_gpu)) {
    gpus.reason = concat("has replicas on ", join(devices), ", and NCCL works only on GPUs");
  } else if (const auto shared = find_shared_gpu(devices)) {
    gpus.reason = concat("has replicas ", shared->first, " and ", shared->second, " on one GPU, ",
                         shared->ordinal, ", which NCCL refuses");
  } else if (const std::string missing = why_no_nccl(); !missing.empty()) {
    gpus.reason = concat("has no NCCL (", missing, ")");
  }
  return gpus;
}

std::string why_not_all(std::string_view who, std::span<const GpusOfRank> ranks) {
  std::map<std::string, std::size_t> users;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (!ranks[r].reason.empty()) return concat(who, " ", r, " ", ranks[r].reason);
    std::istringstream names(ranks[r].names);
    for (std::string name; names >> name;) {
      const auto [found, is_new] = users.emplace(name, r);
      if (is_new) continue;
      return concat(who, "s ", found->second, " and ", r, " both use the GPU ",
                    name.substr(name.find('/') + 1), " of one machine, which NCCL refuses");
    }
  }
  return "";
}

std::unique_ptr<CrossDeviceOps> connect_by_nccl(std::string_view who, Group group, Duration timeout,
                                                const GatherTexts& gather) {
  std::string id, failure;
  ErrorCode code = ErrorCode::kUnavailable;
  const auto noting_failure = [&](const auto& body) {
    try {
      body();
    } catch (const Error& error) {
      failure = error.message();
      code = error.code();
    }
  };
  if (group.first_rank == 0) noting_failure([&] { id = make_nccl_id(); });
  id = gather(id, "NCCL's id").front();
  std::unique_ptr<CrossDeviceOps> ops;
  if (!id.empty()) {
    const auto store = std::make_shared<InProcessStore>();
    store->set(kNcclIdKey, id);
    group.store = store;
    noting_failure([&] {
      const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(timeout);
      ops = build_cross_device_ops(make_cross_device_ops("nccl", {.timeout = milliseconds}), group);
    });
  }
  const std::vector<std::string> failures = gather(failure, "connect GPUs by NCCL");
  for (std::size_t r = 0; r < failures.size(); ++r) {
    if (failures[r].empty()) continue;
    fail(failure.empty() ? ErrorCode::kUnavailable : code, who, " ", r, ": ", failures[r]);
  }
  return ops;
}

}  // namespace tutti::internal
