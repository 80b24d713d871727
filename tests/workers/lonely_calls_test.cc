// Tests collective calls of workers: calls that only one worker makes, and calls that differ.
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/mismatched_calls.h"
#include "tests/workers/worker_processes.h"
#include "tutti/cluster/connect_ranks.h"
#include "tutti/cluster/key_value_stores.h"

namespace tutti::worker_tests::lonely_calls_test {

struct LonelyCall {
  const char* text;
  int line;
  std::function<void(const std::string& file)> make;
};

// All calls in the expansion have the line of the macro's use.
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
  const auto strategy = connect_workers();
  const auto scope = strategy->scope();
  Sequential model(Input{{2}}, Dense(2), BatchNormalization());
  model.compile({.optimizer = "sgd", .loss = "mse"});
  const Tensor x = Tensor::ones({4, 2});
  const std::vector<LonelyCall> calls = lonely_calls(model, x);
  const std::int64_t number = arguments.at("number").as_int();
  if (!strategy->is_chief()) return Json();
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
  const std::string file = new_folder("lonely.safetensors");
  constexpr int kCalls = 8;
  for (int number = 0; number < kCalls; ++number) {
    const auto results = results_of("lonely_call_of_chief", MultiProcessOptions{.num_workers = 2},
                                    Json::object().set("number", number).set("file", file));
    EXPECT_EQ(results.front(), Json("named"));
  }
}

/// Uses all GPUs that a process sees, or the CPU.
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
  const auto results = results_of("replicas_of_a_cluster", options);
  ASSERT_EQ(results.size(), 3u);
  for (std::size_t rank = 0; rank < 3; ++rank) {  // the chief comes first
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

TUTTI_PROCESS_FUNCTION(ranks_whose_calls_differ) {
  FileKeyValueStore store(arguments.at("folder").as_string());
  const ConnectOptions::Way way = parse_way(arguments.at("way").as_string());
  mismatched_calls::expect_errors_on_every_rank([&](const std::string& name) {
    return connect_ranks(this_process().index, 3, store, {.way = way, .key_prefix = name})
        .transport;
  });
  return {};
}

// communicator_test.cc makes such calls between threads, mpi_conformance_test.cc over MPI.
TEST(MismatchedCalls, AreErrorsThatNameBothSidesBetweenProcesses) {
  for (const char* const way : {"shm", "tcp"}) {
    const std::string folder = new_folder(concat("mismatched_over_", way));
    std::filesystem::create_directories(folder);
    MultiProcessRunner runner("ranks_whose_calls_differ", {.num_workers = 3},
                              Json::object().set("way", way).set("folder", folder));
    runner.start();
    runner.join(std::chrono::seconds(500));
  }
}

}  // namespace tutti::worker_tests::lonely_calls_test
