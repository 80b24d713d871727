// Which operations oneDNN computes.
// SPDX-License-Identifier: Apache-2.0
#include <string_view>

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

// What oneDNN uses: the cap (ours or its own ONEDNN_MAX_CPU_ISA) applied to this processor.
std::string_view effective_isa() {
  switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::sse41:
      return "sse41";
    case dnnl::cpu_isa::avx:
      return "avx";
    case dnnl::cpu_isa::avx2:
      return "avx2";
    case dnnl::cpu_isa::avx2_vnni:
      return "avx2_vnni";
    case dnnl::cpu_isa::avx512_core:
      return "avx512_core";
    case dnnl::cpu_isa::avx512_core_vnni:
      return "avx512_core_vnni";
    case dnnl::cpu_isa::avx512_core_bf16:
      return "avx512_core_bf16";
    case dnnl::cpu_isa::avx512_core_amx:
      return "avx512_core_amx";
    default:
      return "baseline";
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
  (void)onednn_engine();  // the cap counts from here on
  const dnnl_version_t* version = dnnl_version();
  return concat("oneDNN ", version->major, ".", version->minor, ".", version->patch, ", ",
                effective_isa());
}

}  // namespace tutti::internal
