// Looks kernels up and calls them.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/cuda/math.h"

#include "tutti/tensor/cuda/context.h"
#include "tutti/tensor/cuda/kernels.h"
#include "tutti/tensor/cuda/math_libraries.h"

namespace tutti::cuda {
namespace {

const KernelTable& table() {
  static const KernelTable table = [] {
    KernelTable filled;
    register_kernels(filled);
    return filled;
  }();
  return table;
}

/// The dtype that kernels are looked up by.
DType dtype_of(const DeviceCall& call) {
  return call.inputs.empty() ? call.outputs[0].dtype : call.inputs[0].dtype;
}

}  // namespace

void register_kernels(KernelTable& table) {
  register_elementwise_kernels(table);
  register_reduction_kernels(table);
  register_shape_kernels(table);
  register_indexing_kernels(table);
  register_scanning_kernels(table);
  register_loss_kernels(table);
  register_group_normalization_kernels(table);
  register_local_response_kernels(table);
  register_resizing_kernels(table);
  register_dropout_kernels(table);
  register_matmul_kernels(table);
  register_convolution_kernels(table);
  register_pooling_kernels(table);
  register_batch_normalization_kernels(table);
  register_softmax_kernels(table);
}

Math::Math(const Gpu& gpu, const Streams& streams)
    : gpu_(gpu), streams_(streams), libraries_(std::make_unique<MathLibraries>()) {}

Math::~Math() {
  // The libraries give back memory of the GPU that is selected.
  gpu_.use_quietly([] {});
}

bool Math::supports(OpId op, DType dtype) const { return table().find(op, dtype) != nullptr; }

void Math::run(const DeviceCall& call, Workspace& workspace) {
  gpu_.use([&] {
    const DType dtype = dtype_of(call);
    const Kernel kernel = table().find(call.op, dtype);
    if (kernel == nullptr) {
      fail(ErrorCode::kUnimplemented, to_string(call.op), ": no kernel for ", dtype,
           " on GPUs; cast to float32, or run it on cpu:0");
    }
    kernel({call.inputs, call.outputs, call.attributes, call.step_values,
            streams_[StreamId::kCompute], *libraries_, workspace});
  });
}

void Math::fill(const DeviceTensor& tensor, double value) {
  gpu_.use([&] { cuda::fill(tensor, value, streams_[StreamId::kCompute]); });
}

void Math::update(const DeviceUpdate& update) {
  gpu_.use([&] { cuda::update(update, streams_[StreamId::kCompute]); });
}

void Math::combine(const DeviceCombine& combine, StreamId stream) {
  gpu_.use([&] { cuda::combine(combine, streams_[stream]); });
}

void Math::copy_many(std::span<const DeviceCopy> copies, StreamId stream) {
  gpu_.use([&] { cuda::copy_many(copies, streams_[stream]); });
}

void Math::scatter(const DeviceScatter& scatter) {
  gpu_.use([&] { cuda::scatter(scatter, streams_[StreamId::kCompute]); });
}

void Math::count_non_finite(std::span<const DeviceTensor> tensors, std::int64_t* counts) {
  gpu_.use([&] { cuda::count_non_finite(tensors, counts, streams_[StreamId::kCompute]); });
}

void Math::sums_of_squares(std::span<const DeviceTensor> tensors, double* sums,
                           Workspace& workspace) {
  gpu_.use([&] { cuda::sums_of_squares(tensors, sums, workspace, streams_[StreamId::kCompute]); });
}

}  // namespace tutti::cuda
