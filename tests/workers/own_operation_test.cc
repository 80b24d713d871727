// Tests workers whose gradients are summed by an operation of the program, or by a plugin.
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/exchange_sums.h"
#include "tests/support/warnings.h"
#include "tests/workers/worker_processes.h"

namespace tutti::worker_tests::own_operation_test {

/// Runs fit() with two replicas in each worker; returns the name of the reduction, the number of
/// buckets given to this file's operation, and the weights.
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

/// Runs every reduction and gather of a strategy, with two replicas in each worker; returns the
/// plugin's output.
TUTTI_PROCESS_FUNCTION(reduce_by_plugin) {
  const std::string name = load_cross_device_ops_plugin(TUTTI_TEST_PLUGINS "/store.so");
  const thrown::LogLines log;
  {
    LocalStrategyOptions local{.devices = "cpu:0-1"};
    local.cross_device_ops = make_cross_device_ops(name);
    const auto strategy = connect_workers({.local = local});
    EXPECT_EQ(strategy->reduction_name(), name);
    const auto scope = strategy->scope();
    Variable weights(Tensor::zeros({3}), {.name = "weights"});
    Variable total(Tensor::zeros({}), {.name = "total",
                                       .trainable = false,
                                       .synchronization = VariableSynchronization::kOnRead,
                                       .aggregation = VariableAggregation::kSum});
    Sgd sgd(std::vector<Variable>{weights}, {.learning_rate = 1.0});
    // Replica r of 4 has the values 2^r.
    const auto values = strategy->run([&] {
      ReplicaContext& context = ReplicaContext::current();
      const Tensor own = Tensor::full({3}, 1 << context.replica_id());
      GradientTape tape;
      const Tensor loss = reduce_sum(weights.value() * own);
      sgd.minimize(tape, loss);
      total.assign_add(reduce_sum(own));
      EXPECT_EQ(context.all_reduce(ReduceOp::kSum, own).to_doubles()[2], 15.0);
      EXPECT_EQ(context.all_gather(own, 0).to_doubles()[10], 8.0);
      return own;
    });
    EXPECT_EQ(weights.value().to_doubles()[1], -15.0);
    EXPECT_EQ(total.value().item_double(), 45.0);
    EXPECT_EQ(strategy->reduce(ReduceOp::kSum, values).to_doubles()[0], 15.0);
    EXPECT_EQ(strategy->reduce(ReduceOp::kMean, values, 0).item_double(), 15.0 / 4);
    const std::pair<PerReplica<Tensor>, std::vector<Device>> task(values, {Device{}});
    EXPECT_EQ(strategy->batch_reduce_to(ReduceOp::kMax, {&task, 1})[0][0].to_doubles()[0], 8.0);
    EXPECT_EQ(strategy->gather(values, 0).to_doubles()[11], 8.0);
  }
  Json lines = Json::array();
  for (const std::string& line : log.list()) {
    if (line.find(" calls of ") != std::string::npos) lines.push_back(line);
  }
  return lines;
}

// The plugin itself refuses a number of buffers other than its number of replicas.
TEST(OwnOperation, OfAPluginGetsTheReplicasThatItWasMadeForInEverySum) {
  const std::vector<Json> lines = results_of("reduce_by_plugin", 2);
  ASSERT_EQ(lines.size(), 2u);
  for (const Json& of_worker : lines) {
    EXPECT_GE(of_worker.as_array().size(), 2u);  // for values, and for gradients
    for (const Json& line : of_worker.as_array()) {
      EXPECT_THAT(line.as_string(), HasSubstr(" calls of 1 of 2 members"));
      EXPECT_EQ(line.as_string().find(": 0 calls"), std::string::npos) << line.dump();
    }
  }
}

}  // namespace tutti::worker_tests::own_operation_test
