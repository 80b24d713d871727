// Elementwise arithmetic on two inputs, and gradients of activations.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/cpu/elementwise_functions.h"
#include "tutti/tensor/cuda/kernels.h"
#include "tutti/tensor/cuda/map.h"

namespace tutti::cuda {

using namespace internal;  // the formulas

void register_binary_kernels(KernelTable& table) {
  set_binary<Add, TUTTI_NUMBER_TYPES>(table, OpId::kAdd);
  set_binary<Subtract, TUTTI_NUMBER_TYPES>(table, OpId::kSubtract);
  set_binary<Multiply, TUTTI_NUMBER_TYPES>(table, OpId::kMultiply);
  set_binary<Maximum, TUTTI_NUMBER_TYPES>(table, OpId::kMaximum);
  set_binary<Minimum, TUTTI_NUMBER_TYPES>(table, OpId::kMinimum);
  set_binary<AddRelu, TUTTI_NUMBER_TYPES>(table, OpId::kAddRelu);
  set_binary<Divide, TUTTI_FLOATING_TYPES>(table, OpId::kDivide);
  set_binary<Power, TUTTI_FLOATING_TYPES>(table, OpId::kPower);
  set_binary<ReluGrad, TUTTI_FLOATING_TYPES>(table, OpId::kReluGrad);
  set_binary<SigmoidGrad, TUTTI_FLOATING_TYPES>(table, OpId::kSigmoidGrad);
  set_binary<TanhGrad, TUTTI_FLOATING_TYPES>(table, OpId::kTanhGrad);
  set_binary<EluGrad, TUTTI_FLOATING_TYPES>(table, OpId::kEluGrad);
  set_binary<GeluGrad, TUTTI_FLOATING_TYPES>(table, OpId::kGeluGrad);
}

}  // namespace tutti::cuda
