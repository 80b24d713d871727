// Elementwise operations on one input.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/cpu/elementwise_functions.h"
#include "tutti/tensor/cuda/kernels.h"
#include "tutti/tensor/cuda/map.h"

namespace tutti::cuda {

using namespace internal;  // the formulas

void register_unary_kernels(KernelTable& table) {
  set_unary<Negate, TUTTI_NUMBER_TYPES>(table, OpId::kNegate);
  set_unary<Square, TUTTI_NUMBER_TYPES>(table, OpId::kSquare);
  set_unary<Abs, TUTTI_NUMBER_TYPES>(table, OpId::kAbs);
  set_unary<Sign, TUTTI_NUMBER_TYPES>(table, OpId::kSign);
  set_unary<Relu, TUTTI_NUMBER_TYPES>(table, OpId::kRelu);
  set_unary<Exp, TUTTI_FLOATING_TYPES>(table, OpId::kExp);
  set_unary<Log, TUTTI_FLOATING_TYPES>(table, OpId::kLog);
  set_unary<Sqrt, TUTTI_FLOATING_TYPES>(table, OpId::kSqrt);
  set_unary<Rsqrt, TUTTI_FLOATING_TYPES>(table, OpId::kRsqrt);
  set_unary<Reciprocal, TUTTI_FLOATING_TYPES>(table, OpId::kReciprocal);
  set_unary<Floor, TUTTI_FLOATING_TYPES>(table, OpId::kFloor);
  set_unary<Ceil, TUTTI_FLOATING_TYPES>(table, OpId::kCeil);
  set_unary<Round, TUTTI_FLOATING_TYPES>(table, OpId::kRound);
  set_unary<Erf, TUTTI_FLOATING_TYPES>(table, OpId::kErf);
  set_unary<Log1p, TUTTI_FLOATING_TYPES>(table, OpId::kLog1p);
  set_unary<Expm1, TUTTI_FLOATING_TYPES>(table, OpId::kExpm1);
  set_unary<Sin, TUTTI_FLOATING_TYPES>(table, OpId::kSin);
  set_unary<Cos, TUTTI_FLOATING_TYPES>(table, OpId::kCos);
  set_unary<Sigmoid, TUTTI_FLOATING_TYPES>(table, OpId::kSigmoid);
  set_unary<Tanh, TUTTI_FLOATING_TYPES>(table, OpId::kTanh);
  set_unary<Softplus, TUTTI_FLOATING_TYPES>(table, OpId::kSoftplus);
  set_unary<Elu, TUTTI_FLOATING_TYPES>(table, OpId::kElu);
  set_unary<Gelu, TUTTI_FLOATING_TYPES>(table, OpId::kGelu);
  set_unary<LogicalNot, bool>(table, OpId::kLogicalNot);
}

}  // namespace tutti::cuda
