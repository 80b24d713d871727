// Runs three steps on two XLA devices; prints the number of compiled programs and the weights.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "tutti/tutti.h"

using namespace tutti;

int main() {
  MirroredStrategy strategy("xla:0-1");
  const auto scope = strategy.scope();
  Variable weight(Tensor::from<float>({3}, {1, 2, 3}), {.name = "weight"});
  Adam optimizer(std::vector<Variable>{weight}, {});
  for (int step = 0; step < 3; ++step) {
    strategy.run([&] {
      GradientTape tape;
      optimizer.minimize(tape, reduce_sum(square(weight.value())));
    });
  }
  std::printf("%d compiled, weights %s\n", strategy.num_compiled(),
              join(weight.value().to_doubles()).c_str());
}
