// Tests workers' collective calls: calls that only one worker makes, mismatched calls, and sums by
// an operation that the program or a plugin defines.
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/exchange_sums.h"
#include "tests/support/mismatched_calls.h"
#include "tests/support/warnings.h"
#include "tests/workers/worker_processes.h"
#include "tutti/cluster/connect_ranks.h"
#include "tutti/cluster/key_value_stores.h"

namespace tutti::worker_tests::lonely_calls_test {

struct LonelyCall {
  const char* text;
  int line;
  std::function<void(const std::string& file)> make;
};

// All calls in the expansion have the line number of the line that uses the macro.
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

/// The chief makes one of the calls while the other worker exits.
TUTTI_PROCESS_FUNCTION(lonely_call_of_chief) {
  const ScopedWorkers strategy;
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
  return Json(concat(own.text, " returned without an error"));
}

TEST(UnmatchedCall, ErrorNamesUserLine) {
  const std::string file = new_folder("lonely.safetensors");
  constexpr int kCalls = 8;
  for (int number = 0; number < kCalls; ++number) {
    const auto results = results_of("lonely_call_of_chief", MultiProcessOptions{.num_workers = 2},
                                    Json::object().set("number", number).set("file", file));
    EXPECT_EQ(results.front(), Json("named"));
  }
}

/// Creates a strategy on all GPUs that a process sees, or on the CPU, and describes its replicas.
TUTTI_PROCESS_FUNCTION(replicas_of_a_cluster) {
  MultiWorkerMirroredStrategy strategy(*resolver_from_environment());
  const auto ones = strategy.run([] { return Tensor(1.0f); });
  return Json::object()
      .set("replicas", strategy.num_replicas_in_sync())
      .set("local", static_cast<std::int64_t>(strategy.replica_devices().size()))
      .set("workers", strategy.num_workers())
      .set("is_chief", strategy.is_chief())
      .set("sum", strategy.reduce(ReduceOp::kSum, ones).item_double());
}

void expect_replicas(const MultiProcessOptions& options, int per_process) {
  const auto results = results_of("replicas_of_a_cluster", options);
  ASSERT_EQ(results.size(), 3u);
  for (std::size_t rank = 0; rank < 3; ++rank) {  // the chief has rank 0
    EXPECT_EQ(results[rank].at("replicas").as_int(), 3 * per_process);
    EXPECT_EQ(results[rank].at("local").as_int(), per_process);
    EXPECT_EQ(results[rank].at("workers").as_int(), 3);
    EXPECT_EQ(results[rank].at("is_chief").as_bool(), rank == 0);
    EXPECT_EQ(results[rank].at("sum").as_double(), 3.0 * per_process);
  }
}

TEST(WorkerCollectives, ChiefAndWorkersShareOneReplicaGroup) {
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

// communicator_test.cc tests mismatched calls between threads, and mpi_conformance_test.cc over
// MPI.
TEST(MismatchedCalls, ErrorNamesCallsOfBothProcesses) {
  for (const char* const way : {"shm", "tcp"}) {
    const std::string folder = new_folder(concat("mismatched_over_", way));
    std::filesystem::create_directories(folder);
    MultiProcessRunner runner("ranks_whose_calls_differ", {.num_workers = 3},
                              Json::object().set("way", way).set("folder", folder));
    runner.start();
    runner.join(std::chrono::seconds(500));
  }
}

/// Runs fit() with two replicas in each worker. Returns the name of the reduction, the number of
/// buckets that this file's operation received, and the weights.
TUTTI_PROCESS_FUNCTION(fit_by_operation) {
  testing::ExchangeSums::Seen seen;
  register_cross_device_ops("exchange_sums", [&](const Group& group, const CommunicationOptions&) {
    return std::make_unique<testing::ExchangeSums>(group, seen);
  });
  LocalStrategyOptions local{.devices = "cpu:0-1"};
  local.cross_device_ops = make_cross_device_ops(arguments.at("operation").as_string());
  const ScopedWorkers strategy({.local = local});
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

TEST(CustomOperation, RegisteredOperationSumsGradientsAcrossProcesses) {
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

/// Calls every reduction and gather of a strategy that has two replicas on each worker. Returns the
/// log lines of the plugin about its calls.
TUTTI_PROCESS_FUNCTION(reduce_by_plugin) {
  const std::string name = load_cross_device_ops_plugin(TUTTI_TEST_PLUGINS "/store.so");
  const thrown::LogLines log;
  {
    LocalStrategyOptions local{.devices = "cpu:0-1"};
    local.cross_device_ops = make_cross_device_ops(name);
    const ScopedWorkers strategy({.local = local});
    EXPECT_EQ(strategy->reduction_name(), name);
    Variable weights(Tensor::zeros({3}), {.name = "weights"});
    Variable total = count_of_replicas("total");
    Sgd sgd(std::vector<Variable>{weights}, {.learning_rate = 1.0});
    // All values on replica r of 4 are 2^r.
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

// The plugin rejects calls whose number of buffers differs from its number of replicas.
TEST(CustomOperation, PluginReceivesOneBufferPerReplicaInEverySum) {
  const std::vector<Json> lines = results_of("reduce_by_plugin", 2);
  ASSERT_EQ(lines.size(), 2u);
  for (const Json& of_worker : lines) {
    EXPECT_GE(of_worker.as_array().size(), 2u);  // at least one line each for values and gradients
    for (const Json& line : of_worker.as_array()) {
      EXPECT_THAT(line.as_string(), HasSubstr(" calls of 1 of 2 members"));
      EXPECT_EQ(line.as_string().find(": 0 calls"), std::string::npos) << line.dump();
    }
  }
}

}  // namespace tutti::worker_tests::lonely_calls_test
