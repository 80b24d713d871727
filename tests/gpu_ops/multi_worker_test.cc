// Tests several workers with replicas on GPUs, each worker a thread: the bits of one process, sums
// by the hosts or by NCCL, and errors that name the worker.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/multi_worker_mirrored_strategy.h"

#include <limits>

#include "cross_device_ops/in_process/in_process_transport.h"
#include "tests/gpu_ops/gpu_ops_helpers.h"
#include "tests/strategy/toy_training.h"
#include "tests/support/ranks.h"
#include "tutti/optimizer/gradient_reducer.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/strategy/captured_step.h"

namespace tutti::multi_worker_gpus_test {

using gpu_ops_tests::Environment;
using gpu_ops_tests::expect_tensor;
using gpu_ops_tests::gpu;
using gpu_ops_tests::take_nccl_notes;
using strategy_tests::numbers;
using strategy_tests::train;
using strategy_tests::Trained;
using ::testing::Each;
using ::testing::HasSubstr;

using Implementation = CommunicationImplementation;
using WorkerBody = std::function<void(MultiWorkerMirroredStrategy&)>;

/// Small packs give several buckets.
LocalStrategyOptions on(const std::string& devices,
                        Implementation implementation = Implementation::kCanonical) {
  LocalStrategyOptions options;
  options.devices = devices;
  options.cross_device_ops.options.bytes_per_pack = 300;
  options.cross_device_ops.options.implementation = implementation;
  return options;
}

std::vector<std::string> run_on(const std::vector<LocalStrategyOptions>& options,
                                const WorkerBody& body) {
  const auto workers = static_cast<int>(options.size());
  auto transports = in_process_transports(workers, false);
  return errors_of_ranks(workers, [&](int worker) {
    const auto w = static_cast<std::size_t>(worker);
    MultiWorkerMirroredStrategy strategy(make_communicator(transports[w]), options[w]);
    body(strategy);
  });
}

void expect_fine(const std::vector<LocalStrategyOptions>& options, const WorkerBody& body) {
  EXPECT_THAT(run_on(options, body), Each(""));
}

std::vector<LocalStrategyOptions> workers_on(const std::vector<std::string>& devices,
                                             Implementation implementation) {
  std::vector<LocalStrategyOptions> options;
  for (const std::string& each : devices) options.push_back(on(each, implementation));
  return options;
}

TEST(MultiWorkerGpus, ByTheHostsTheyHaveTheBitsOfOneProcess) {
  MirroredStrategy two(on("gpu:0-1")), four(on("gpu:0-3"));
  const std::map<int, Trained> expected = {{2, train(two)}, {4, train(four)}};
  for (const std::vector<std::string>& devices : {std::vector<std::string>{"gpu:0", "gpu:1"},
                                                  {"gpu:0-1", "gpu:2-3"},
                                                  {"gpu:0-2", "gpu:3"},
                                                  {"gpu:0", "gpu:1-2", "gpu:3"}}) {
    std::vector<Trained> trained(devices.size());
    int replicas = 0;
    expect_fine(workers_on(devices, Implementation::kCanonical),
                [&](MultiWorkerMirroredStrategy& strategy) {
                  if (strategy.worker() == 0) replicas = strategy.num_replicas_in_sync();
                  trained[static_cast<std::size_t>(strategy.worker())] = train(strategy);
                });
    for (const Trained& each : trained) {
      EXPECT_EQ(each.weights, expected.at(replicas).weights) << join(devices);
      EXPECT_EQ(each.slots, expected.at(replicas).slots) << join(devices);
      EXPECT_EQ(each.losses, expected.at(replicas).losses) << join(devices);
    }
  }
}

/// Returns the sums of random gradients over three steps.
std::vector<double> sums_of(Strategy& strategy, DType dtype) {
  const auto scope = strategy.scope();
  const std::vector<Variable> variables{Variable(Tensor::zeros({20'000}, dtype), {.name = "a"}),
                                        Variable(Tensor::zeros({7}, dtype), {.name = "b"})};
  std::vector<double> all;
  for (std::uint64_t step = 0; step < 3; ++step) {
    const auto sums = strategy.run([&] {
      ReplicaContext& context = ReplicaContext::current();
      const auto r = static_cast<std::uint64_t>(context.replica_id());
      GradientReducer& reducer = *GradientReducer::current();
      reducer.begin(variables);
      for (std::size_t i = 2; i-- > 0;) {
        const Tensor random =
            random_normal(variables[i].shape(), RandomKey{3, kUserPurpose, r, step, i});
        reducer.ready(i, cast(random, dtype).to(context.device()));
      }
      const std::vector<Gradient> reduced = reducer.finish();
      reducer.updates_done();
      return concat({reduced[0].dense(), reduced[1].dense()}, 0);
    });
    for (const Tensor& sum : sums) {
      EXPECT_EQ(sum.dtype(), dtype);
      for (const double value : numbers(sum)) all.push_back(value);
    }
  }
  all.resize(20'007);  // of one replica; the others have equal values
  return all;
}

TEST(MultiWorkerGpus, GradientsOfEveryTypeAndWorkersOfEveryKindHaveTheBitsOfCpus) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64}) {
    MirroredStrategy cpus(on("cpu:0-2"));
    const std::vector<double> expected = sums_of(cpus, dtype);
    for (const std::vector<std::string>& devices : {std::vector<std::string>{"gpu:0-1", "gpu:2"},
                                                    {"cpu:0-1", "gpu:0"},
                                                    {"gpu:1", "cpu:0-1"}}) {
      std::vector<std::vector<double>> sums(devices.size());
      expect_fine(workers_on(devices, Implementation::kAuto),
                  [&](MultiWorkerMirroredStrategy& strategy) {
                    if (devices[0] != "gpu:0-1") {
                      EXPECT_EQ(strategy.reduction_name(), "canonical");
                    }
                    sums[static_cast<std::size_t>(strategy.worker())] = sums_of(strategy, dtype);
                  });
      if (devices[0] == "gpu:0-1") {  // NCCL adds in its own order
        EXPECT_EQ(sums[0], sums[1]);
        for (std::size_t i = 0; i < expected.size(); i += 97) {
          EXPECT_NEAR(sums[0][i], expected[i], 0.04) << dtype;
        }
        continue;
      }
      for (const auto& each : sums) EXPECT_EQ(each, expected) << dtype << " " << join(devices);
    }
  }
}

/// Runs one step with the gradient that `give` makes for replica r; returns each worker's error and
/// weights.
template <class Give>
std::pair<std::vector<std::string>, std::vector<std::vector<double>>> one_step(
    Implementation implementation, NonFinitePolicy policy, const Give& give) {
  std::vector<LocalStrategyOptions> options = workers_on({"gpu:0-1", "gpu:2"}, implementation);
  for (auto& each : options) each.cross_device_ops.options.non_finite = policy;
  std::vector<std::vector<double>> weights(2);
  auto errors = run_on(options, [&](MultiWorkerMirroredStrategy& strategy) {
    const auto scope = strategy.scope();
    Variable w(Tensor::zeros({2, 1}), {.name = "w"});
    Variable b(Tensor::zeros({1}), {.name = "b"});
    Sgd sgd(std::vector<Variable>{w, b}, {.learning_rate = 1.0});
    strategy.run([&] {
      ReplicaContext& context = ReplicaContext::current();
      const Gradient one(Tensor::ones({1}, DType::kFloat32, context.device()));
      const Gradient gradient = give(context.replica_id(), context.device());
      sgd.apply_gradients(std::vector<Gradient>{gradient, one});
    });
    expect_tensor(b.value(), {1}, {policy == NonFinitePolicy::kSkip ? 0.0 : -3.0});
    weights[static_cast<std::size_t>(strategy.worker())] = numbers(w.value());
  });
  return {errors, weights};
}

Gradient column(float a, float b, Device device) {
  return Tensor::from<float>({2, 1}, {a, b}, device);
}
Gradient row(std::int64_t index, float value, Device device) {
  return IndexedSlices{Tensor::from<float>({1, 1}, {value}, device),
                       Tensor::from<std::int64_t>({1}, {index}, device), Shape{2, 1}};
}

using Weights = std::vector<std::vector<double>>;

TEST(MultiWorkerGpus, MissingSparseAndMixedGradientsAreSummed) {
  for (const Implementation implementation : {Implementation::kCanonical, Implementation::kNccl}) {
    const auto step = [&](const auto& give) {
      const auto [errors, weights] = one_step(implementation, NonFinitePolicy::kIgnore, give);
      EXPECT_THAT(errors, Each(""));
      return weights;
    };
    EXPECT_EQ(step([](int r, Device d) { return r == 2 ? Gradient() : column(1, 2, d); }),
              (Weights{{-2, -4}, {-2, -4}}));
    EXPECT_EQ(step([](int r, Device d) { return r < 2 ? Gradient() : column(1, 2, d); }),
              (Weights{{-1, -2}, {-1, -2}}));
    EXPECT_EQ(step([](int r, Device d) { return row(r % 2, 1.0f + static_cast<float>(r), d); }),
              (Weights{{-4, -2}, {-4, -2}}));
    EXPECT_EQ(step([](int r, Device d) { return r < 2 ? row(1, 5, d) : column(1, 1, d); }),
              (Weights{{-1, -11}, {-1, -11}}));
    EXPECT_EQ(step([](int r, Device d) { return r == 0 ? row(1, 5, d) : column(1, 1, d); }),
              (Weights{{-2, -7}, {-2, -7}}));
  }
}

TEST(MultiWorkerGpus, ValuesThatAreNotFiniteAreNamedSkippedAndZeroed) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Implementation implementation : {Implementation::kCanonical, Implementation::kNccl}) {
    for (const int bad : {1, 2}) {
      const auto give = [&](int r, Device d) { return column(1, r == bad ? nan : 1.0f, d); };
      for (const std::string& error :
           one_step(implementation, NonFinitePolicy::kError, give).first) {
        EXPECT_THAT(error, HasSubstr(concat(
                               "Variable 'w' is not finite at flat index 1 on replica ", bad)));
      }
      EXPECT_EQ(one_step(implementation, NonFinitePolicy::kSkip, give).second,
                (Weights{{0, 0}, {0, 0}}));
      EXPECT_EQ(one_step(implementation, NonFinitePolicy::kZero, give).second,
                (Weights{{-3, -2}, {-3, -2}}));
    }
  }
}

TEST(MultiWorkerGpus, CollectivesAndVariablesOfEveryKind) {
  expect_fine(workers_on({"gpu:0-1", "gpu:2"}, Implementation::kCanonical), [](auto& strategy) {
    auto scope = strategy.scope();
    Variable count(Tensor::scalar(0, DType::kInt64),
                   {.name = "count",
                    .trainable = false,
                    .synchronization = VariableSynchronization::kOnRead,
                    .aggregation = VariableAggregation::kSum});
    Variable mean(Tensor::from<float>({2}, {0, 0}),
                  {.name = "mean", .trainable = false, .aggregation = VariableAggregation::kMean});
    Variable rows(Tensor::zeros({3, 1}),
                  {.name = "rows", .trainable = false, .aggregation = VariableAggregation::kSum});
    const auto results = strategy.run([&] {
      ReplicaContext& replica = ReplicaContext::current();
      const float own = static_cast<float>(replica.replica_id() + 1);
      const Tensor x = Tensor::from<float>({2}, {own, 2 * own}, replica.device());
      count.assign_add(Tensor::scalar(5, DType::kInt64, replica.device()));
      mean.assign(x);
      const auto index = static_cast<std::int64_t>(replica.replica_id());
      rows.scatter_add({Tensor::from<float>({1, 1}, {own}, replica.device()),
                        Tensor::from<std::int64_t>({1}, {index}, replica.device()), Shape{3, 1}});
      const Tensor sum = replica.all_reduce(ReduceOp::kSum, x);
      EXPECT_EQ(sum.device(), replica.device());
      return concat({sum, replica.all_gather(x, 0)}, 0);
    });
    for (std::size_t r = 0; r < results.size(); ++r) {
      EXPECT_EQ(results[r].device(), strategy.replica_devices()[r]);
      expect_tensor(results[r], {8}, {6, 12, 1, 2, 2, 4, 3, 6});
    }
    expect_tensor(count.value(), {}, {15});
    expect_tensor(mean.value(), {2}, {2, 4});
    for (const Tensor& copy : mean.storage().local_components()) expect_tensor(copy, {2}, {2, 4});
    expect_tensor(rows.value(), {3, 1}, {1, 2, 3});
    count.assign(Tensor::scalar(7, DType::kInt64));
    expect_tensor(count.value(), {}, {7});
    expect_tensor(strategy.reduce(ReduceOp::kSum, results), {8}, {18, 36, 3, 6, 6, 12, 9, 18});
    expect_tensor(strategy.reduce(ReduceOp::kMean, results, 0), {}, {4.5});
    EXPECT_EQ(strategy.gather(results, 0).shape(), Shape{24});
    const auto ten = strategy.run([] { return ReplicaContext::current().replica_id() * 10; });
    EXPECT_EQ(ten[0], strategy.first_replica() * 10);
  });
}

TEST(MultiWorkerGpus, ACapturedStepRunsItselfAndSaysSo) {
  const thrown::LogLines log;
  expect_fine(workers_on({"gpu:0", "gpu:1"}, Implementation::kCanonical), [](auto& strategy) {
    auto scope = strategy.scope();
    Variable w(Tensor::from<float>({1}, {1}), {.name = "w"});
    Sgd sgd(std::vector<Variable>{w}, {.learning_rate = 0.25});
    const auto step = captured([&] {
      GradientTape tape;
      sgd.minimize(tape, reduce_sum(w.value()));
    });
    for (int i = 0; i < 4; ++i) strategy.run(step);
    EXPECT_EQ(step.num_captured(), 0);
    expect_tensor(w.value(), {1}, {-1});
  });
  EXPECT_THAT(log.text(), HasSubstr("with several workers the function itself runs each time"));
}

TEST(MultiWorkerGpus, NcclIsOneGroupOfAllGpus) {
  MirroredStrategy four(on("gpu:0-3"));
  const Trained expected = train(four);
  for (const std::vector<std::string>& devices :
       {std::vector<std::string>{"gpu:0-1", "gpu:2-3"}, {"gpu:0", "gpu:1-3"}}) {
    take_nccl_notes();
    std::vector<Trained> trained(2);
    std::vector<std::vector<double>> losses(2);
    expect_fine(workers_on(devices, Implementation::kNccl), [&](auto& strategy) {
      EXPECT_EQ(strategy.reduction_name(), "nccl");
      trained[static_cast<std::size_t>(strategy.worker())] = train(strategy);
    });
    EXPECT_EQ(trained[0].weights, trained[1].weights);
    EXPECT_EQ(trained[0].losses, trained[1].losses);
    EXPECT_FALSE(trained[0].losses.empty());
    const std::string notes = take_nccl_notes();
    EXPECT_THAT(notes, HasSubstr("init rank 0 of 4 GPU 0\n"));
    EXPECT_THAT(notes, HasSubstr("init rank 3 of 4 GPU 3\n"));
    EXPECT_EQ(notes.find('!'), std::string::npos);  // no misuse was recorded
  }
}

TEST(MultiWorkerGpus, AutoTakesNcclWhereAllCanAndSaysWhy) {
  const auto line_of = [](const std::vector<std::string>& devices, std::string_view expected) {
    const thrown::LogLines log;
    expect_fine(workers_on(devices, Implementation::kAuto),
                [&](auto& strategy) { EXPECT_EQ(strategy.reduction_name(), expected); });
    return log.text();
  };
  EXPECT_THAT(line_of({"gpu:0-1", "gpu:2"}, "nccl"),
              HasSubstr("sums over workers: nccl, because each replica has a GPU of its own"));
  EXPECT_THAT(line_of({"gpu:0", "gpu:0"}, "canonical"),
              HasSubstr("sums over workers: canonical, because workers 0 and 1 both use the GPU"));
  EXPECT_THAT(line_of({"gpu:0", "cpu:0"}, "canonical"),
              HasSubstr("canonical, because worker 1 has replicas on cpu:0"));
  EXPECT_THAT(line_of({"cpu:0", "cpu:0"}, "canonical"),
              HasSubstr("canonical, because no replica is on a GPU"));
  std::vector<LocalStrategyOptions> options = workers_on({"gpu:0", "gpu:1"}, Implementation::kAuto);
  for (auto& each : options) each.deterministic = true;
  expect_fine(options, [](auto& strategy) { EXPECT_EQ(strategy.reduction_name(), "canonical"); });
}

TEST(MultiWorkerGpus, OneWorkerAloneIsAMirroredStrategy) {
  for (const auto& [implementation, name] : {std::pair(Implementation::kAuto, "nccl"),
                                             {Implementation::kNccl, "nccl"},
                                             {Implementation::kRing, "ring"},
                                             {Implementation::kCanonical, "canonical"}}) {
    MirroredStrategy mirrored(on("gpu:0-2", implementation));
    const std::vector<double> expected = sums_of(mirrored, DType::kFloat32);
    const std::string algorithm = name;  // clang 14 cannot capture structured bindings
    expect_fine({on("gpu:0-2", implementation)}, [&](auto& strategy) {
      EXPECT_EQ(strategy.reduction_name(), algorithm);
      EXPECT_EQ(sums_of(strategy, DType::kFloat32), expected);
    });
  }
  expect_fine({on("gpu:1", Implementation::kAuto)}, [&](auto& strategy) {
    EXPECT_EQ(sums_of(strategy, DType::kFloat32).size(), 20'007u);
  });
}

TEST(MultiWorkerGpus, NcclThatCannotBeIsRefusedOnEveryWorker) {
  const auto refusal = [](const std::vector<std::string>& devices, int replicas = 0) {
    std::vector<LocalStrategyOptions> options = workers_on(devices, Implementation::kNccl);
    for (auto& each : options) each.replicas = replicas;
    return run_on(options, [](auto&) {});
  };
  EXPECT_THAT(refusal({"gpu:0", "cpu:0"}), Each(HasSubstr("worker 1 has replicas on cpu:0")));
  EXPECT_THAT(refusal({"gpu:0", "gpu:0"}), Each(HasSubstr("workers 0 and 1 both use the GPU")));
  EXPECT_THAT(refusal({"gpu:0", "gpu:1"}, 4),
              Each(HasSubstr("worker 0 has replicas 0 and 1 on one GPU, 0")));
  std::vector<LocalStrategyOptions> options = workers_on({"gpu:0", "gpu:1"}, Implementation::kNccl);
  for (auto& each : options) each.deterministic = true;
  EXPECT_THAT(run_on(options, [](auto&) {}),
              Each(HasSubstr("'nccl' does not add in canonical order")));
  for (auto& each : options) {
    each.deterministic = false;
    each.cross_device_ops.options.timeout = std::chrono::milliseconds(400);
  }
  const Environment faults("TUTTI_SIMULATED_NCCL", "init_never:1");
  EXPECT_THAT(run_on(options, [](auto&) {}),
              Each(HasSubstr("worker 0: nccl: rank 0 (gpu:0): making communicators of 2 ranks")));
}

/// Worker 1 fails in its backward pass, when worker 0 may be waiting for its sums.
TEST(MultiWorkerGpus, AnErrorOnOneWorkerEndsTheOthersNamingIt) {
  for (const Implementation implementation : {Implementation::kCanonical, Implementation::kNccl}) {
    const auto errors =
        run_on(workers_on({"gpu:0-1", "gpu:2"}, implementation), [](auto& strategy) {
          const auto scope = strategy.scope();
          std::vector<Variable> variables{Variable(Tensor::zeros({300}), {.name = "a"}),
                                          Variable(Tensor::zeros({300}), {.name = "b"})};
          strategy.run([&] {
            const Device device = ReplicaContext::current().device();
            GradientReducer& reducer = *GradientReducer::current();
            reducer.begin(variables);
            reducer.ready(1, Tensor::ones({300}, DType::kFloat32, device));
            if (ReplicaContext::current().replica_id() == 2) {
              fail(ErrorCode::kResourceExhausted, "Running out of resources");
            }
            reducer.ready(0, Tensor::ones({300}, DType::kFloat32, device));
            reducer.finish();
            reducer.updates_done();
          });
        });
    EXPECT_THAT(errors, Each(HasSubstr("replica 2, step 0: Running out of resources")));
  }
}

TEST(MultiWorkerGpus, AnErrorOfNcclEndsTheStepOnEveryWorker) {
  std::vector<LocalStrategyOptions> options = workers_on({"gpu:0", "gpu:1"}, Implementation::kNccl);
  for (auto& each : options) {
    each.cross_device_ops.options.timeout = std::chrono::milliseconds(1000);
  }
  take_nccl_notes();  // discards earlier launches
  const Environment faults("TUTTI_SIMULATED_NCCL", "async_error:1");
  const auto errors = run_on(options, [](auto& strategy) { sums_of(strategy, DType::kFloat32); });
  EXPECT_THAT(errors, Each(HasSubstr("nccl: rank")));
  EXPECT_THAT(concat(errors[0], errors[1]), HasSubstr("injected: the peer's network has gone"));
  take_nccl_notes();
}

TEST(MultiWorkerGpus, CompressionOnGpusIsRefused) {
  std::vector<LocalStrategyOptions> options =
      workers_on({"gpu:0", "gpu:1"}, Implementation::kCanonical);
  for (auto& each : options) {
    each.cross_device_ops.options.compression = WireCompression::kBFloat16;
  }
  EXPECT_THAT(run_on(options, [](auto&) {}),
              ::testing::Contains(HasSubstr("compression bfloat16")));
}

}  // namespace tutti::multi_worker_gpus_test
