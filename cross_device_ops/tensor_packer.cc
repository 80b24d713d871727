// Many small tensors <-> few flat buffers.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/tensor_packer.h"

#include <cstring>

#include "cross_device_ops/device_work.h"

namespace tutti {
namespace {

/// The tensors may be on other devices. One launch.
void pack_on_gpu(const PackPlan::Pack& pack, std::span<const Tensor> tensors,
                 const MutableTensor& buffer) {
  std::vector<Tensor> near;  // lives until the copies are queued
  std::vector<DeviceCopy> copies;
  auto* place = static_cast<std::byte*>(buffer.address());
  for (const std::size_t index : pack.tensors) {
    near.push_back(tensors[index].to(buffer.device()));
    const std::size_t bytes = near.back().num_bytes();
    if (bytes > 0) copies.push_back({place, near.back().address(), bytes});
    place += bytes;
  }
  internal::copy_many_on_gpu(buffer.device(), copies);
}

}  // namespace

PackPlan plan_packs(std::span<const Tensor> tensors, std::int64_t bytes_per_pack) {
  const auto limit =
      static_cast<std::size_t>(bytes_per_pack == 0 ? kDefaultBytesPerPack : bytes_per_pack);
  PackPlan plan;
  for (DType dtype : kAllDTypes) {
    bool open = false;
    for (std::size_t i = tensors.size(); i-- > 0;) {
      if (tensors[i].dtype() != dtype) continue;
      if (!open) plan.packs.push_back({.dtype = dtype, .tensors = {}, .count = 0});
      PackPlan::Pack& last = plan.packs.back();
      last.tensors.push_back(i);
      last.count += static_cast<std::size_t>(tensors[i].num_elements());
      open = last.count * size_of(dtype) < limit;
    }
  }
  return plan;
}

MutableTensor pack(const PackPlan::Pack& pack, std::span<const Tensor> tensors, Device device) {
  MutableTensor buffer({static_cast<std::int64_t>(pack.count)}, pack.dtype, device);
  if (device.type == DeviceType::kGpu) {
    pack_on_gpu(pack, tensors, buffer);
    return buffer;
  }
  std::byte* place = buffer.data();
  for (std::size_t index : pack.tensors) {
    const auto bytes = tensors[index].bytes();
    if (bytes.empty()) continue;
    std::memcpy(place, bytes.data(), bytes.size());
    place += bytes.size();
  }
  return buffer;
}

void unpack(const PackPlan::Pack& pack, const MutableTensor& buffer, std::span<const Tensor> like,
            std::span<Tensor> results) {
  const Tensor flat = buffer.freeze();
  std::int64_t first = 0;
  for (std::size_t index : pack.tensors) {
    const std::int64_t count = like[index].num_elements();
    results[index] = flat.detached_rows(first, count).detached_reshape(like[index].shape());
    first += count;
  }
}

}  // namespace tutti
