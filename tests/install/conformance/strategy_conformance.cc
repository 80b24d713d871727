// Runs the strategy suite on MirroredStrategy, as GoogleTest tests.
// SPDX-License-Identifier: Apache-2.0
#include "gtest/gtest.h"
#include "tutti/strategy/strategies.h"
#include "tutti/testing/strategy/strategy_gtest.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const auto make = [] {
    return std::make_unique<tutti::MirroredStrategy>(
        tutti::LocalStrategyOptions{.devices = "cpu:0-1"});
  };
  tutti::conformance::register_strategy_gtests({.name = "mirrored", .make = make});
  return RUN_ALL_TESTS();
}
