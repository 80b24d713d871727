// The table of policies, and the current one.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/dtype_policy.h"

#include <array>
#include <atomic>
#include <vector>

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

std::size_t index_of(const std::string& name) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kPolicies.size(); ++i) {
    if (name == kPolicies[i].name) return i;
    names.emplace_back(kPolicies[i].name);
  }
  fail(ErrorCode::kInvalidArgument, "DTypePolicy: no policy is named '", name,
       "'; expected one of ", join(names));
}

std::atomic<std::size_t> current_policy = 0;

}  // namespace

DTypePolicy::DTypePolicy(const std::string& policy_name) {
  const NamedPolicy& found = kPolicies[index_of(policy_name)];
  name = found.name;
  compute = found.compute;
  variable = found.variable;
}

void set_dtype_policy(const DTypePolicy& policy) { current_policy.store(index_of(policy.name)); }

DTypePolicy dtype_policy() { return kPolicies[current_policy.load()].name; }

}  // namespace tutti
