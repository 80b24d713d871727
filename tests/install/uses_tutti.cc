// Minimal program that uses an installed tutti.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "tutti/strategy/strategies.h"

int main() {
  tutti::MirroredStrategy strategy({.devices = "cpu:0-1"});
  const auto values = strategy.run([&] {
    const int replica = tutti::get_replica_context()->replica_id();
    return tutti::Tensor(static_cast<float>(replica + 1));
  });
  const tutti::Tensor sum = strategy.reduce(tutti::ReduceOp::kSum, values);
  std::printf("sum %g\n", sum.item());
}
