// Collectives on GPU memory: ordering relative to other work in the streams; copies, casts and
// packing; sums along the canonical tree, on GPUs or through host memory.
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

/// Work that one call queues in the communication streams of its devices. Each of these streams
/// waits for the work that is in its device's compute stream when this object is created; join()
/// makes the compute streams wait for the communication streams. barrier() orders work between
/// devices: call it before and after one device accesses another's memory. No function blocks the
/// host. Not thread-safe.
class DeviceWork {
 public:
  using Event = std::shared_ptr<DeviceEvent>;

  /// `devices` are GPUs; duplicates are allowed.
  explicit DeviceWork(std::span<const Device> devices);
  /// Overload for work that begins only after these events.
  DeviceWork(std::span<const Device> devices, std::span<const Event> begin);
  /// Calls join().
  ~DeviceWork();
  DeviceWork(const DeviceWork&) = delete;
  DeviceWork& operator=(const DeviceWork&) = delete;

  /// Makes later work on every device wait for the work queued so far on all devices.
  void barrier();
  /// Makes later work on each compute stream wait for this object's work on the same device. Only
  /// the first call has an effect.
  void join();

  /// mark() returns an event for the end of the work queued so far on a device; wait() makes later
  /// work wait for such an event.
  Event mark(Device device);
  void wait(Device device, const DeviceEvent& event);

  /// Returns memory on `device` that is valid until join(). This object's later work waits for
  /// earlier work that used the same memory.
  std::byte* scratch(Device device, std::size_t bytes);
  /// Copies from any device, in the stream of `to`'s device.
  void copy(const ReplicaBuffer& from, const ReplicaBuffer& to);
  /// Copy to or from host memory. Pinned memory must stay valid until the copy is done.
  void copy_to_host(const ReplicaBuffer& from, std::byte* to);
  void copy_from_host(const std::byte* from, const ReplicaBuffer& to);
  /// Combines `inputs` along the canonical tree into `output`, on output's device. The inputs may
  /// be on any device, and one may be the output; inputs that the device cannot read are copied
  /// first.
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

/// Returns true if kernels of `reader` can read the memory of `owner`.
bool reaches(Device reader, Device owner);

// The following functions do not wait. All buffers of a call are on one device unless stated
// otherwise.

/// Copies from any GPU, after the work in that GPU's compute stream; later work in that stream
/// waits for the copy.
void copy_on_gpu(const ReplicaBuffer& from, const ReplicaBuffer& to);
/// Converts elements to another type, rounding once.
void cast_on_gpu(const ReplicaBuffer& from, const ReplicaBuffer& to);
/// Divides each element. Floating-point types only.
void divide_on_gpu(const ReplicaBuffer& buffer, std::size_t divisor);

/// Performs many copies within one device with a single kernel launch.
void copy_many_on_gpu(Device device, std::span<const DeviceCopy> copies);

/// Returns a tensor's elements as a mutable buffer. Operations do not write to their inputs.
ReplicaBuffer buffer_of(const Tensor& tensor);
ReplicaBuffer buffer_of(const MutableTensor& tensor);

// The following functions require buffers of the same length and dtype, each with a `work`.

/// Combines in place: each device computes a slice from all buffers, then the slices are copied to
/// all devices. With V devices, each reads (V-1)/V of a buffer from its peers twice, as much as in
/// a ring.
void canonical_on_gpus(ReduceOp op, std::span<const ReplicaBuffer> buffers);

/// Combines tensors of the same shape and dtype, located on any GPUs; returns the result on device
/// `where`.
Tensor sum_on_gpu(ReduceOp op, std::span<const Tensor> values, Device where);

// Transfers between GPUs and host memory, for sums over several workers' GPUs through the hosts.
// Transfers are queued in the streams of `work` without waiting. Each GPU copies a different slice,
// so that all links to the host are used at once.

/// For each node i, combines its replicas along the canonical tree and copies the result to
/// outputs[i], in host memory. Replica r is buffers[r]; the buffers are overwritten. The caller
/// widens 16-bit types first, to avoid intermediate rounding.
void sums_to_host(ReduceOp op, std::span<const ReplicaBuffer> buffers,
                  std::span<const CanonicalNode> nodes, std::span<std::byte* const> outputs);

/// Copies the elements at `values`, which are in host memory, to all buffers.
void broadcast_from_host(const std::byte* values, std::span<const ReplicaBuffer> buffers);

}  // namespace tutti::internal
