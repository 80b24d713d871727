// What the kernels of the CUDA backend do, for one logical device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>

#include "tutti/tensor/cuda/gpu.h"
#include "tutti/tensor/cuda/kernels.h"
#include "tutti/tensor/device_backend.h"

namespace tutti::cuda {

class Streams;

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

}  // namespace tutti::cuda
