// Which operations oneDNN computes.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/cpu/max_isa.h"
#include "tutti/tensor/cpu/onednn/engine.h"
#include "tutti/tensor/cpu/onednn/onednn_kernels.h"
#include "tutti/tensor/cpu/registration.h"

namespace tutti::internal {
namespace {

/// `kernel` on one thread, with oneDNN's exceptions as ours.
template <Kernel kernel>
void guarded(const KernelArgs& args) {
  const OneThread one_thread;
  try {
    kernel(args);
  } catch (const dnnl::error& error) {
    const bool memory = error.status == dnnl_out_of_memory;
    fail(memory ? ErrorCode::kResourceExhausted : ErrorCode::kInternal, "oneDNN: ", error.what(),
         " (status ", static_cast<int>(error.status), ")");
  }
}

}  // namespace

void register_onednn_kernels(KernelTable& table) {
  (void)onednn_engine();  // caps the instruction set before anything else uses oneDNN
  table.set(OpId::kConv2d, DType::kFloat32, guarded<onednn_conv2d>);
  table.set(OpId::kConv2dBackwardInput, DType::kFloat32, guarded<onednn_conv2d_backward_input>);
  table.set(OpId::kConv2dBackwardFilter, DType::kFloat32, guarded<onednn_conv2d_backward_filter>);
  table.set(OpId::kMatMul, DType::kFloat32, guarded<onednn_matmul>);
}

std::string onednn_description() {
  const dnnl_version_t* version = dnnl_version();
  return concat("oneDNN ", version->major, ".", version->minor, ".", version->patch, ", ",
                to_string(max_isa()));
}

}  // namespace tutti::internal
