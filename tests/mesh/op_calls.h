// Calls from the table of operations (tests/support/op_cases.h) whose tensors a mesh can shard.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <vector>

#include "strategy/mesh/mesh_position.h"
#include "tests/autograd/gradient_check.h"
#include "tests/mesh/mesh_helpers.h"
#include "tests/support/op_cases.h"
#include "tutti/tensor/device_scope.h"

namespace tutti::mesh_tests {

/// A call whose inputs are points at which the operation is smooth.
struct MeshCall : gradient_check::Case {
  bool is_differentiated = false;  // if false, only values are compared
};

inline bool has_even_dimension(const Tensor& x) {
  for (int d = 0; d < x.rank(); ++d) {
    if (x.shape().dim(d) > 0 && x.shape().dim(d) % 2 == 0) return true;
  }
  return false;
}

/// For each operation of a family, returns the calls that have an input which two mesh positions
/// can share. Floating-point inputs are float64.
inline std::map<OpId, std::vector<MeshCall>> calls_of(const testing::OpFamily& family) {
  constexpr std::int64_t kMostElements = 4000;
  std::map<OpId, std::vector<MeshCall>> calls;
  for (const testing::OpCase& c : family.cases()) {
    std::vector<MeshCall>& of_op = calls[c.call.op];
    const bool in_other_types = std::ranges::any_of(c.call.inputs, [](const Tensor& x) {
      return is_floating(x.dtype()) && x.dtype() != DType::kFloat64;
    });
    if (c.has_special_numbers || in_other_types || is_half(c.call.outputs[0].dtype) ||
        c.call.outputs[0].dtype == DType::kFloat32 ||
        gradient_check::num_elements(c.call) > kMostElements ||
        std::ranges::none_of(c.call.inputs, has_even_dimension)) {
      continue;
    }
    of_op.push_back({gradient_check::case_of(c), gradient_check::is_differentiated(c)});
  }
  return calls;
}

/// Returns `x` with this sharding. If the result is a partial sum, the terms are 2x, -x, x, -x,
/// ..., whose sum needs no rounding.
inline Tensor in_sharding(internal::MeshPosition& position, const Tensor& x,
                          internal::Sharding sharding) {
  const internal::AxisSet partial = std::exchange(sharding.partial, internal::AxisSet{0});
  const TensorSpec spec{x.shape(), x.dtype()};
  Tensor local = position.local_as({{}, x, spec}, sharding);
  if (partial != 0) {
    const int term = position.grid().index(position.number(), partial);
    const OpPartitionerScope none(nullptr);
    const DeviceScope here(position.device());
    local = local * Tensor::scalar(term == 0 ? 2 : term % 2 == 0 ? 1 : -1, x.dtype());
  }
  sharding.partial = partial;
  return position.tensor_of({sharding, local, spec});
}

}  // namespace tutti::mesh_tests
