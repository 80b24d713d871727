// Workers whose gradients an operation of their own program adds.
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/exchange_sums.h"
#include "tests/workers/worker_processes.h"

namespace tutti::worker_tests {
namespace own_operation_test {

/// fit() with two replicas in each worker; the name of the reduction, how often the operation of
/// this file was given a bucket, and the weights.
TUTTI_PROCESS_FUNCTION(fit_by_operation) {
  testing::ExchangeSums::Seen seen;
  register_cross_device_ops("exchange_sums", [&](const Group& group, const CommunicationOptions&) {
    return std::make_unique<testing::ExchangeSums>(group, seen);
  });
  LocalStrategyOptions local{.devices = "cpu:0-1"};
  local.cross_device_ops = make_cross_device_ops(arguments.at("operation").as_string());
  const auto strategy = connect_workers({.local = local});
  const auto scope = strategy->scope();
  Sequential model(Input{{3}}, Dense(4), Dense(1));
  model.compile({.optimizer = "adam", .loss = "mse"});
  const Tensor x = random_normal({16, 3}, RandomKey{1}), y = random_normal({16, 1}, RandomKey{2});
  model.fit(x, y, {.epochs = 2, .batch_size = 8, .verbose = Verbosity::kSilent});
  Json weights = Json::array();
  for (const Variable& each : model.trainable_variables()) {
    for (const double value : each.value().to_doubles()) weights.push_back(value);
  }
  return Json::Array{strategy->reduction_name(), static_cast<std::int64_t>(seen.ids.size()),
                     weights};
}

TEST(OwnOperation, OfTheProgramAddsTheGradientsOfProcesses) {
  const auto run = [](const char* operation) {
    return results_of("fit_by_operation", 2, Json::object().set("operation", operation));
  };
  const std::vector<Json> own = run("exchange_sums"), canonical = run("canonical");
  ASSERT_EQ(own.size(), 2u);
  ASSERT_EQ(canonical.size(), 2u);
  for (std::size_t worker = 0; worker < 2; ++worker) {
    const Json::Array& result = own[worker].as_array();
    EXPECT_EQ(result[0].as_string(), "exchange_sums");
    EXPECT_GE(result[1].as_int(), 1);
    EXPECT_EQ(canonical[worker].as_array()[1].as_int(), 0);
    EXPECT_EQ(result[2].dump(), canonical[worker].as_array()[2].dump());
  }
}

}  // namespace own_operation_test
}  // namespace tutti::worker_tests
