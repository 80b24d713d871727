// Collectives on the memory of GPUs: their place among the other work of the streams; what GPUs do
// to elements around them; sums along the canonical tree on GPUs, or by their hosts.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "tensor/device_backend.h"
#include "tensor/gpu_device.h"
#include "tutti/cross_device_ops/canonical_tree.h"
#include "tutti/cross_device_ops/collective.h"
#include "tutti/tensor/reduce_op.h"
#include "tutti/tensor/tensor.h"

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

// None of these waits for a GPU. The buffers of a call are on one device, unless it says otherwise.

/// From any GPU, after that one's compute stream; its later work waits for the copy.
void copy_on_gpu(const ReplicaBuffer& from, const ReplicaBuffer& to);
/// As many elements of another type, rounded once.
void cast_on_gpu(const ReplicaBuffer& from, const ReplicaBuffer& to);
/// Divides each element. Floating types.
void divide_on_gpu(const ReplicaBuffer& buffer, std::size_t divisor);

/// Many copies within a device: one launch.
void copy_many_on_gpu(Device device, std::span<const DeviceCopy> copies);

/// A tensor's elements as a buffer. Operations do not write to inputs.
ReplicaBuffer buffer_of(const Tensor& tensor);
ReplicaBuffer buffer_of(const MutableTensor& tensor);

// Buffers of one length and dtype, with a `work`.

/// In place: each device forms its slice of the result from all buffers, then the slices are
/// spread. A device reads (V-1)/V of a buffer from its peers, twice: as much as a ring.
void canonical_on_gpus(ReduceOp op, std::span<const ReplicaBuffer> buffers);

/// Tensors of one shape and dtype, each on any GPU, combined by `where`.
Tensor sum_on_gpu(ReduceOp op, std::span<const Tensor> values, Device where);

// Between GPUs and the host's memory: how workers' GPUs are summed by their hosts. All of it goes
// into the streams of `work`: nothing waits. Each GPU brings its slice, so that all links to the
// host are used at once.

/// Combines each node's replicas (numbers of `buffers`) along the canonical tree and copies that to
/// outputs[i], in host memory. The buffers hold something else afterwards. Types that are rounded
/// in between (16-bit ones) are widened first, by the caller.
void sums_to_host(ReduceOp op, std::span<const ReplicaBuffer> buffers,
                  std::span<const CanonicalNode> nodes, std::span<std::byte* const> outputs);

/// The elements at `values`, in host memory, to all buffers.
void spread_from_host(const std::byte* values, std::span<const ReplicaBuffer> buffers);

}  // namespace tutti::internal
