// Runs the suite of all strategies under XLA.
// SPDX-License-Identifier: Apache-2.0
#include "tests/xla/xla_test_support.h"
#include "tutti/testing/strategy/suite.h"

namespace tutti {
namespace {

class XlaStrategySuite : public ::testing::TestWithParam<std::tuple<int, std::string>> {};

TEST_P(XlaStrategySuite, Check) {
  const auto& [replicas, check] = GetParam();
  const conformance::StrategySubject subject{
      .name = concat("tpu_", replicas),
      .make = [replicas = replicas]() -> std::unique_ptr<Strategy> {
        return std::make_unique<TpuStrategy>(LocalStrategyOptions{.replicas = replicas});
      },
      .is_canonical = false};
  const std::string message = conformance::run_strategy_check(subject, check);
  if (check == "collectives" && replicas > 1) {
    // The check gathers values of different lengths, which one program for all replicas cannot do.
    EXPECT_NE(message.find("expected the same operations on the same shapes"), std::string::npos)
        << message;
  } else {
    EXPECT_EQ(message, "");
  }
}

INSTANTIATE_TEST_SUITE_P(, XlaStrategySuite,
                         ::testing::Combine(::testing::Values(1, 2, 4),
                                            ::testing::ValuesIn(conformance::strategy_checks())),
                         [](const auto& info) {
                           return concat(std::get<1>(info.param), "_on_", std::get<0>(info.param));
                         });

}  // namespace
}  // namespace tutti
