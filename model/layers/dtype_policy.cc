// The table of policies, and the current one.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/dtype_policy.h"

#include <array>
#include <atomic>

#include "core/names.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

struct NamedPolicy {
  const char* name;
  DType compute;
  DType variable;
};

constexpr std::array kPolicies = {
    NamedPolicy{"float32", DType::kFloat32, DType::kFloat32},
    NamedPolicy{"float64", DType::kFloat64, DType::kFloat64},
    NamedPolicy{"mixed_bfloat16", DType::kBFloat16, DType::kFloat32},
    NamedPolicy{"mixed_float16", DType::kFloat16, DType::kFloat32},
};

const NamedPolicy& find_policy(const std::string& name) {
  return internal::named_entry(kPolicies, &NamedPolicy::name, name, "DTypePolicy", "policy");
}

std::atomic<const NamedPolicy*> current_policy = &kPolicies[0];

}  // namespace

DTypePolicy::DTypePolicy(const std::string& policy_name) {
  const NamedPolicy& found = find_policy(policy_name);
  name = found.name;
  compute = found.compute;
  variable = found.variable;
}

void set_dtype_policy(const DTypePolicy& policy) {
  current_policy.store(&find_policy(policy.name));
}

DTypePolicy dtype_policy() { return current_policy.load()->name; }

}  // namespace tutti
