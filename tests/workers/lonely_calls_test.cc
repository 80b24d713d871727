// Collective calls of workers, and those that one makes alone.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>
#include <filesystem>

#include "tests/support/multi_process_runner.h"
#include "tutti/cluster.h"
#include "tutti/tutti.h"

namespace tutti {
namespace lonely_calls_test {

using testing::MultiProcessRunner;
using testing::this_process;

struct LonelyCall {
  const char* text;
  int line;
  std::function<void(const std::string& file)> make;
};

// The line of the expansion is also that of the calls in it.
#define TUTTI_LONELY_CALL(call)                                                            \
  {                                                                                        \
#call, __LINE__,                                                                       \
        [&](const std::string& file) { static_cast<void>(file), static_cast<void>(call); } \
  }

std::vector<LonelyCall> lonely_calls(Sequential& model, const Tensor& x) {
  return {
      TUTTI_LONELY_CALL(model.predict(x)),
      TUTTI_LONELY_CALL(model.evaluate(x, x)),
      TUTTI_LONELY_CALL(model.save(file)),
      TUTTI_LONELY_CALL(model.save_weights(file)),
      TUTTI_LONELY_CALL(model.checkpoint().save(file)),
      TUTTI_LONELY_CALL(save_weights(file, model.variables())),
      TUTTI_LONELY_CALL(export_onnx(model, file)),
      TUTTI_LONELY_CALL(hash_variables(model.variables())),
  };
}

/// The chief makes one of the calls while the other worker ends.
TUTTI_PROCESS_FUNCTION(lonely_call_of_chief) {
  MultiWorkerMirroredStrategy strategy(*resolver_from_environment(),
                                       MultiWorkerOptions{.local = {.devices = "cpu:0"}});
  const auto scope = strategy.scope();
  Sequential model(Input{{2}}, Dense(2), BatchNormalization());
  model.compile({.optimizer = "sgd", .loss = "mse"});
  const Tensor x = Tensor::ones({4, 2});
  const std::vector<LonelyCall> calls = lonely_calls(model, x);
  const std::int64_t number = arguments.at("number").as_int();
  if (!strategy.is_chief()) return Json();
  const LonelyCall& own = calls[static_cast<std::size_t>(number)];
  const std::string place = concat("lonely_calls_test.cc:", own.line);
  try {
    own.make(arguments.at("file").as_string());
  } catch (const Error& error) {
    const bool is_named = error.message().find(place) != std::string::npos;
    return Json(is_named ? "named" : concat(own.text, " at ", place, ": ", error.message()));
  }
  return Json(concat(own.text, " ended without an error"));
}

TEST(LonelyCall, NamesTheLineOfTheUser) {
  const std::string file =
      (std::filesystem::path(::testing::TempDir()) / concat("lonely-", ::getpid(), ".safetensors"))
          .string();
  constexpr int kCalls = 8;
  for (int number = 0; number < kCalls; ++number) {
    MultiProcessRunner runner("lonely_call_of_chief", {.num_workers = 2},
                              Json::object().set("number", number).set("file", file));
    runner.start();
    EXPECT_EQ(runner.join().return_values.front(), Json("named"));
  }
  std::filesystem::remove(file);
}

using testing::MultiProcessOptions;

/// On all GPUs that a process sees, or the CPU.
TUTTI_PROCESS_FUNCTION(replicas_of_a_cluster) {
  MultiWorkerMirroredStrategy strategy(*resolver_from_environment());
  Json result = Json::object();
  result.set("replicas", strategy.num_replicas_in_sync());
  result.set("local", static_cast<std::int64_t>(strategy.replica_devices().size()));
  result.set("workers", strategy.num_workers());
  result.set("is_chief", strategy.is_chief());
  const auto ones = strategy.run([] { return Tensor(1.0f); });
  result.set("sum", strategy.reduce(ReduceOp::kSum, ones).item_double());
  return result;
}

void expect_replicas(const MultiProcessOptions& options, int per_process) {
  MultiProcessRunner runner("replicas_of_a_cluster", options);
  runner.start();
  const auto& results = runner.join().return_values;
  ASSERT_EQ(results.size(), 3u);
  for (std::size_t rank = 0; rank < 3; ++rank) {  // the chief is the first one
    EXPECT_EQ(results[rank].at("replicas").as_int(), 3 * per_process);
    EXPECT_EQ(results[rank].at("local").as_int(), per_process);
    EXPECT_EQ(results[rank].at("workers").as_int(), 3);
    EXPECT_EQ(results[rank].at("is_chief").as_bool(), rank == 0);
    EXPECT_EQ(results[rank].at("sum").as_double(), 3.0 * per_process);
  }
}

TEST(WorkerCollectives, ChiefAndTwoWorkersHaveTheReplicasOfAllThree) {
  expect_replicas(
      {.num_workers = 2, .num_chiefs = 1, .environment = {{"CUDA_VISIBLE_DEVICES", ""}}}, 1);
#ifdef TUTTI_SIMULATED_MODULE
  expect_replicas({.num_workers = 2,
                   .num_chiefs = 1,
                   .environment = {{"TUTTI_CUDA_MODULE", TUTTI_SIMULATED_MODULE},
                                   {"TUTTI_NCCL_LIBRARY", TUTTI_SIMULATED_MODULE},
                                   {"TUTTI_SIMULATED_GPUS", "2"}}},
                  2);
#endif
}

TUTTI_PROCESS_FUNCTION(all_reduce_of_a_mixed_tuple) {
  MultiWorkerMirroredStrategy strategy(*resolver_from_environment(),
                                       MultiWorkerOptions{.local = {.devices = "cpu:0"}});
  const auto results = strategy.run([] {
    const auto row = [](float value, std::int64_t index) {
      return IndexedSlices{Tensor::from<float>({1, 1}, {value}),
                           Tensor::from<std::int64_t>({1}, {index}), Shape{5, 1}};
    };
    const std::vector<Gradient> tuple = {row(1, 0), Tensor(1.0f), row(3, 2), Tensor(2.0f)};
    return ReplicaContext::current().all_reduce(ReduceOp::kSum, tuple);
  });
  Json sums = Json::array();
  for (const Gradient& each : results[0]) {
    Json sum = Json::object();
    sum.set("is_sparse", each.is_slices());
    Json values = Json::array();
    for (const double value : each.to_dense().to_doubles()) values.push_back(value);
    sum.set("values", std::move(values));
    sums.push_back(std::move(sum));
  }
  return sums;
}

TEST(WorkerCollectives, MixedTupleOfTwoProcessesKeepsItsOrder) {
  MultiProcessRunner runner("all_reduce_of_a_mixed_tuple", {.num_workers = 2});
  runner.start();
  const auto& results = runner.join().return_values;
  const Json expected = Json::parse(
      R"([{"is_sparse": true, "values": [2.0, 0.0, 0.0, 0.0, 0.0]},
          {"is_sparse": false, "values": [2.0]},
          {"is_sparse": true, "values": [0.0, 0.0, 6.0, 0.0, 0.0]},
          {"is_sparse": false, "values": [4.0]}])",
      "expected");
  EXPECT_EQ(results, (std::vector<Json>{expected, expected}));
}

}  // namespace lonely_calls_test
}  // namespace tutti
