// Casts between float32 and the 16-bit types; the others stay with the reference kernels.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/cpu/registration.h"
#include "tutti/tensor/half_conversion.h"

namespace tutti::internal {
namespace {

void cast(const KernelArgs& args) {
  const Tensor& from = args.inputs[0];
  const MutableTensor& to = args.outputs[0];
  const auto count = static_cast<std::size_t>(from.num_elements());
  if (from.dtype() == DType::kFloat32 && is_half(to.dtype())) {
    narrow(args.in<float>(0).data(), to.dtype(), to.data(), count);
  } else if (is_half(from.dtype()) && to.dtype() == DType::kFloat32) {
    widen(from.dtype(), from.bytes().data(), args.out<float>(0).data(), count);
  } else {
    reference_kernels().find(OpId::kCast, from.dtype())(args);
  }
}

}  // namespace

void register_fast_cast_kernels(KernelTable& table) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    table.set(OpId::kCast, dtype, cast);
  }
}

}  // namespace tutti::internal
