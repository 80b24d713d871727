// Comparisons, logic and the choice between two inputs.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/cpu/elementwise_functions.h"
#include "tutti/tensor/cuda/kernels.h"
#include "tutti/tensor/cuda/map.h"

namespace tutti::cuda {

using namespace internal;  // the formulas

namespace {

struct Choose {
  template <class T>
  __device__ T operator()(bool condition, T a, T b) const {
    return condition ? a : b;
  }
};

void where(const KernelCall& call) {
  visit_bytes(size_of(call.outputs[0].dtype), [&]<class T>() {
    if constexpr (!std::is_same_v<T, Bytes16>) {
      map<3>(Choose{}, call.outputs[0].shape, call.out<T>(0),
             {call.inputs[0].shape, call.inputs[1].shape, call.inputs[2].shape}, call.stream,
             call.in<bool>(0), call.in<T>(1), call.in<T>(2));
    }
  });
}

}  // namespace

void register_comparison_kernels(KernelTable& table) {
  set_predicate<Equal, TUTTI_NUMBER_TYPES, bool>(table, OpId::kEqual);
  set_predicate<NotEqual, TUTTI_NUMBER_TYPES, bool>(table, OpId::kNotEqual);
  set_predicate<Less, TUTTI_NUMBER_TYPES>(table, OpId::kLess);
  set_predicate<LessEqual, TUTTI_NUMBER_TYPES>(table, OpId::kLessEqual);
  set_predicate<Greater, TUTTI_NUMBER_TYPES>(table, OpId::kGreater);
  set_predicate<GreaterEqual, TUTTI_NUMBER_TYPES>(table, OpId::kGreaterEqual);
  set_predicate<LogicalAnd, bool>(table, OpId::kLogicalAnd);
  set_predicate<LogicalOr, bool>(table, OpId::kLogicalOr);
  table.set(OpId::kWhere, DType::kBool, where);
}

}  // namespace tutti::cuda
