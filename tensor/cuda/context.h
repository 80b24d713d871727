// A logical device on one GPU: its streams, memory, copies and captures.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <memory>
#include <span>

#include "tensor/cuda/events.h"
#include "tensor/cuda/gpu.h"
#include "tensor/cuda/kernels.h"
#include "tensor/device_backend.h"

namespace tutti::cuda {

/// Streams of one context, in the order of StreamId. They do not wait for the default stream.
class Streams {
 public:
  explicit Streams(const Gpu& gpu);
  ~Streams();
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;
  cudaStream_t operator[](StreamId stream) const {
    return streams_[static_cast<std::size_t>(stream)];
  }

 private:
  const Gpu gpu_;
  std::array<cudaStream_t, 3> streams_{};
};

/// Finds kernels in the table and calls them with the GPU selected.
class Math final : public DeviceMath {
 public:
  /// Both outlive this.
  Math(const Gpu& gpu, const Streams& streams);
  ~Math() override;

  bool supports(OpId op, DType dtype) const override;
  void run(const DeviceCall& call, Workspace& workspace) override;
  void fill(const DeviceTensor& tensor, double value) override;
  void update(const DeviceUpdate& update) override;
  void combine(const DeviceCombine& combine, StreamId stream) override;
  void copy_many(std::span<const DeviceCopy> copies, StreamId stream) override;
  void scatter(const DeviceScatter& scatter) override;
  void count_non_finite(std::span<const DeviceTensor> tensors, std::int64_t* counts) override;
  void sums_of_squares(std::span<const DeviceTensor> tensors, double* sums,
                       Workspace& workspace) override;

 private:
  const Gpu& gpu_;
  const Streams& streams_;
  const std::unique_ptr<MathLibraries> libraries_;
};

class Context final : public DeviceContext {
 public:
  explicit Context(int ordinal);
  /// Waits for the work in its streams.
  ~Context() override;

  DeviceMath& math() override { return math_; }
  void* allocate(std::size_t bytes) override;
  void release(void* data) noexcept override;

  void copy_to_device(void* to, const void* from, std::size_t bytes, StreamId stream) override;
  void copy_to_host(void* to, const void* from, std::size_t bytes, StreamId stream) override;
  void copy_from_peer(void* to, const void* from, int from_ordinal, std::size_t bytes,
                      StreamId stream) override;
  void clear(void* data, std::size_t bytes, StreamId stream) override;

  std::shared_ptr<DeviceEvent> record(StreamId stream) override;
  std::shared_ptr<DeviceEvent> record_timed(StreamId stream) override;
  void wait(StreamId stream, const DeviceEvent& event) override;
  void synchronize(StreamId stream) override;
  void* native_stream(StreamId stream) override { return streams_[stream]; }
  std::shared_ptr<DeviceEvent> record_foreign(void* stream) override;
  void wait_foreign(void* stream, const DeviceEvent& event) override;

  void begin_capture() override;
  std::unique_ptr<DeviceGraph> end_capture() override;

 private:
  std::shared_ptr<DeviceEvent> record(cudaStream_t stream, bool timed);
  void wait(cudaStream_t stream, const DeviceEvent& event);
  void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, StreamId stream);
  void reach_peers();

  const Gpu gpu_;
  const Streams streams_;
  const std::shared_ptr<EventPool> events_;
  Math math_;
};

}  // namespace tutti::cuda
