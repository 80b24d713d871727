// In which types layers keep their weights and compute.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/tensor/dtype.h"

namespace tutti {

/// The types of a layer: weights are made as `variable`, floating inputs are cast to `compute`. A
/// value. keras.DTypePolicy.
struct DTypePolicy {
  DTypePolicy() = default;
  /// "float32", "float64"; "mixed_bfloat16" and "mixed_float16": weights in float32, arithmetic in
  /// the 16-bit type (on CPUs in float32, each result rounded). Throws kInvalidArgument listing
  /// them for another name.
  DTypePolicy(const std::string& policy);
  DTypePolicy(const char* policy) : DTypePolicy(std::string(policy)) {}

  std::string name = "float32";
  DType compute = DType::kFloat32;
  DType variable = DType::kFloat32;
};

/// The policy of layers made from now on, on all threads (default "float32"). Call it before the
/// model is made. keras.config.set_dtype_policy.
void set_dtype_policy(const DTypePolicy& policy);
DTypePolicy dtype_policy();

}  // namespace tutti
