// One collective on the memory of GPUs: its place among the other work of their streams.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "tensor/device_backend.h"
#include "tensor/gpu_device.h"
#include "tutti/cross_device_ops/collective.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti::internal {

/// The work of one call goes into the communication streams of its devices. Each begins after what
/// its device's compute stream holds when the object is made; join() makes the compute streams wait
/// for it. Between devices meet() orders: whoever lets one device touch another's memory calls it
/// before and after. Nothing here waits on the host. Threads: one at a time.
class DeviceWork {
 public:
  using Event = std::shared_ptr<DeviceEvent>;

  /// The GPUs of `devices`, each once or more.
  explicit DeviceWork(std::span<const Device> devices);
  /// The same for work that begins after these events alone.
  DeviceWork(std::span<const Device> devices, std::span<const Event> begin);
  /// Joins.
  ~DeviceWork();
  DeviceWork(const DeviceWork&) = delete;
  DeviceWork& operator=(const DeviceWork&) = delete;

  /// What is put in from now on begins, on every device, after what any of them has so far.
  void meet();
  /// What compute streams get from now on begins after the work of their device. Once.
  void join();

  /// The end of the work that `device` has so far, and its wait for that of another.
  Event mark(Device device);
  void wait(Device device, const DeviceEvent& event);

  /// Memory of `device` until the work is joined; its former use is over before the work begins.
  std::byte* scratch(Device device, std::size_t bytes);
  /// On the device of `to`; from any device.
  void copy(const ReplicaBuffer& from, const ReplicaBuffer& to);
  /// Between a device and host memory, which stays as it is until the copy is done if it is pinned.
  void copy_to_host(const ReplicaBuffer& from, std::byte* to);
  void copy_from_host(const std::byte* from, const ReplicaBuffer& to);
  /// Each of `inputs`, which may be on any device, along the canonical tree into `output`, by its
  /// device; output may be one of them. What that device cannot reach is copied to it first.
  void combine(ReduceOp op, std::span<const ReplicaBuffer> inputs, const ReplicaBuffer& output);

  /// Calls use(context) with the device's context.
  template <class Use>
  decltype(auto) with_context(Device device, const Use& use) {
    return GpuDevice::of(device).with_context(use);
  }

 private:
  void add_devices(std::span<const Device> devices);

  std::vector<Device> devices_;
  std::vector<MutableTensor> scratch_;
  bool joined_ = false;
};

/// Whether kernels of `reader` can read the memory of `owner`.
bool reaches(Device reader, Device owner);

}  // namespace tutti::internal
