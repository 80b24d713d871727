// Several workers, each a thread with a strategy of its own: the bits of one process, and errors
// that name the worker.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/multi_worker_mirrored_strategy.h"

#include <cmath>
#include <limits>

#include "tests/strategy/toy_training.h"
#include "tests/strategy/worker_threads.h"
#include "tutti/optimizer/gradient_reducer.h"

namespace tutti::strategy_tests {
namespace {
void expect_bits_of_one_process(const std::vector<int>& replicas, Between between,
                                const std::string& algorithm = "canonical") {
  const std::string what = concat("replicas ", join(replicas), " over ", algorithm);
  int total = 0;
  for (const int count : replicas) total += count;
  const Trained expected = train(*mirrored(1, total));
  std::vector<Trained> trained(replicas.size());
  expect_no_error(run_workers(workers_with(replicas),
                              [&](MultiWorkerMirroredStrategy& strategy) {
                                EXPECT_EQ(strategy.num_replicas_in_sync(), total);
                                trained[static_cast<std::size_t>(strategy.worker())] =
                                    train(strategy);
                              },
                              between, {.algorithm = algorithm}));
  for (const Trained& each : trained) {
    EXPECT_EQ(each.weights, expected.weights) << what;
    EXPECT_EQ(each.slots, expected.slots) << what;
    EXPECT_EQ(each.losses, expected.losses) << what;
  }
}

TEST(MultiWorker, EqualWorkersGiveTheBitsOfOneProcess) {
  expect_bits_of_one_process({1}, Between::kMemory);
  expect_bits_of_one_process({1, 1}, Between::kMemory);
  expect_bits_of_one_process({1, 1}, Between::kMessages);
  expect_bits_of_one_process({2, 2}, Between::kMessages);
  expect_bits_of_one_process({1, 1, 1}, Between::kMessages);
  expect_bits_of_one_process({1, 1, 1, 1}, Between::kMessages, "hierarchical_copy");
}

TEST(MultiWorker, WorkersThatAreNoSubtreesGiveTheBitsOfOneProcess) {
  expect_bits_of_one_process({3, 3}, Between::kMessages);
  expect_bits_of_one_process({1, 3}, Between::kMessages);
  expect_bits_of_one_process({3, 1}, Between::kMemory);
  expect_bits_of_one_process({2, 1, 1}, Between::kMessages);
  expect_bits_of_one_process({1, 2, 3}, Between::kMessages);
}

TEST(MultiWorker, ReplicasAreSharedOutOverTheWorkers) {
  std::vector<LocalStrategyOptions> options(3, on_cpus(1, 4));
  std::vector<std::vector<int>> seen(3);
  expect_no_error(run_workers(options, [&](MultiWorkerMirroredStrategy& strategy) {
    const auto ids = strategy.run([] { return ReplicaContext::current().replica_id(); });
    seen[static_cast<std::size_t>(strategy.worker())] = ids.values();
    EXPECT_EQ(strategy.num_workers(), 3);
    EXPECT_EQ(strategy.first_replica(), ids[0]);
    EXPECT_EQ(strategy.num_replicas_in_sync(), 4);
  }));
  EXPECT_EQ(seen, (std::vector<std::vector<int>>{{0, 1}, {2}, {3}}));
}

TEST(MultiWorker, TooFewReplicasForTheDevicesAreRefused) {
  const auto errors = run_workers({on_cpus(2, 3), on_cpus(2, 3)}, [](auto&) {});
  EXPECT_THAT(errors[1], ::testing::HasSubstr("3 replicas over 2 workers give worker 1 1"));
}

/// Runs `body` once per replica of {2, 1} replicas, its results by replica.
template <class Fn>
std::vector<Tensor> by_replica(const Fn& body) {
  std::vector<Tensor> results(3);
  expect_no_error(run_workers(
      workers_with({2, 1}),
      [&](MultiWorkerMirroredStrategy& strategy) {
        const PerReplica<Tensor> local = strategy.run([&] { return body(); });
        for (std::size_t i = 0; i < local.size(); ++i) {
          results[static_cast<std::size_t>(strategy.first_replica()) + i] = local[i];
        }
      },
      Between::kMessages));
  return results;
}

TEST(MultiWorker, AllReduceCombinesTheReplicasOfAllWorkers) {
  for (const Tensor& sum : by_replica([] {
         return ReplicaContext::current().all_reduce(ReduceOp::kSum, num(replica_number() + 1.0));
       })) {
    EXPECT_EQ(sum.item(), 6.0f);
  }
  for (const Tensor& largest : by_replica([] {
         return ReplicaContext::current().all_reduce(ReduceOp::kMax, num(replica_number()));
       })) {
    EXPECT_EQ(largest.item(), 2.0f);
  }
}

TEST(MultiWorker, AllGatherConcatenatesUnevenLengthsInReplicaOrder) {
  for (const Tensor& whole : by_replica([] {
         const auto r = static_cast<std::size_t>(replica_number());
         return ReplicaContext::current().all_gather(
             vec(std::vector<float>(r, static_cast<float>(r))), 0);
       })) {
    EXPECT_EQ(numbers(whole), (std::vector<double>{1, 2, 2}));
  }
}

TEST(MultiWorker, GradientsOfCollectivesReachTheOtherWorkers) {
  // d/dx_r of sum over replicas s of (sum of x)^2 * s.
  for (const Tensor& gradient : by_replica([] {
         GradientTape tape;
         const Tensor x = num(replica_number() + 1.0);
         tape.watch(x);
         const Tensor sum = ReplicaContext::current().all_reduce(ReduceOp::kSum, x);
         return tape.gradient(square(sum) * replica_number(), x).dense();
       })) {
    EXPECT_EQ(gradient.item(), 2.0f * 6.0f * (0.0f + 1.0f + 2.0f));
  }
}

TEST(MultiWorker, StrategyReduceAndGatherReachAllReplicas) {
  expect_no_error(run_workers(
      workers_with({2, 1}),
      [](MultiWorkerMirroredStrategy& strategy) {
        const auto values = strategy.run([] { return vec({replica_number(), 1.0f}); });
        EXPECT_EQ(numbers(strategy.reduce(ReduceOp::kSum, values)), (std::vector<double>{3, 3}));
        EXPECT_EQ(numbers(strategy.reduce(ReduceOp::kMean, values)), (std::vector<double>{1, 1}));
        EXPECT_EQ(strategy.reduce(ReduceOp::kSum, values, 0).item(), 6.0f);
        EXPECT_EQ(numbers(strategy.gather(values, 0)), (std::vector<double>{0, 1, 1, 1, 2, 1}));
        const std::vector<Device> here = {Device{}};
        EXPECT_EQ(numbers(strategy.reduce_to(ReduceOp::kSum, values, here)[0]),
                  (std::vector<double>{3, 3}));
      },
      Between::kMessages));
}

TEST(MultiWorker, AssignmentsInReplicasAggregateOverAllWorkers) {
  expect_no_error(run_workers(
      workers_with({1, 2}),
      [](MultiWorkerMirroredStrategy& strategy) {
        const auto scope = strategy.scope();
        Variable mean(Tensor::zeros({}),
                      {.name = "mean", .aggregation = VariableAggregation::kMean});
        Variable first(Tensor::zeros({}),
                       {.name = "first", .aggregation = VariableAggregation::kOnlyFirstReplica});
        Variable rows(Tensor::zeros({3, 1}),
                      {.name = "rows", .aggregation = VariableAggregation::kSum});
        strategy.run([&] {
          mean.assign(num(replica_number() * 3.0));
          first.assign_add(num(replica_number() + 7.0));
          const auto row = static_cast<std::int64_t>(replica_number());
          rows.scatter_add({vec({replica_number() + 1.0f}).detached_reshape({1, 1}),
                            Tensor::from<std::int64_t>({1}, {row}), Shape{3, 1}});
        });
        EXPECT_EQ(components(mean),
                  copies_of(3.0, static_cast<int>(strategy.replica_devices().size())));
        EXPECT_EQ(first.value().item(), 7.0f);
        EXPECT_EQ(numbers(rows.value()), (std::vector<double>{1, 2, 3}));
        strategy.run([&] { mean.assign(2.5); });  // a plain number: its mean is itself
        EXPECT_EQ(mean.value().item(), 2.5f);
      },
      Between::kMessages));
}

TEST(MultiWorker, OnReadVariablesAreReadSavedAndRestoredOverAllWorkers) {
  std::vector<NamedTensor> saved;
  const auto make = [](MultiWorkerMirroredStrategy& strategy) {
    const auto scope = strategy.scope();
    return Variable(Tensor::zeros({}), {.name = "count",
                                        .synchronization = VariableSynchronization::kOnRead,
                                        .aggregation = VariableAggregation::kSum});
  };
  expect_no_error(run_workers(workers_with({2, 1}), [&](MultiWorkerMirroredStrategy& strategy) {
    Variable count = make(strategy);
    strategy.run([&] { count.assign_add(num(replica_number() + 1.0)); });
    EXPECT_EQ(count.value().item(), 6.0f);
    const std::vector<NamedTensor> tensors = count.storage().save();
    ASSERT_EQ(tensors.size(), 4u);
    EXPECT_EQ(tensors[0].value.item(), 6.0f);
    EXPECT_EQ(tensors[3].name, "count/replica_2");
    EXPECT_EQ(tensors[3].value.item(), 3.0f);
    if (strategy.worker() == 0) saved = tensors;
  }));
  const TensorLookup lookup = [&](const std::string& name) {
    for (const NamedTensor& each : saved) {
      if (each.name == name) return each.value;
    }
    return Tensor();
  };
  // The same replicas elsewhere keep theirs; another number of replicas shares the whole out.
  for (const auto& [replicas, expected] :
       {std::pair(std::vector<int>{1, 2}, std::vector<double>{1, 2, 3}),
        std::pair(std::vector<int>{1, 1}, std::vector<double>{3, 3})}) {
    std::vector<double> restored(expected.size());
    expect_no_error(run_workers(workers_with(replicas), [&](MultiWorkerMirroredStrategy& strategy) {
      Variable count = make(strategy);
      count.storage().restore(lookup);
      const std::vector<double> own = components(count);
      std::ranges::copy(own, restored.begin() + strategy.first_replica());
    }));
    EXPECT_EQ(restored, expected);
  }
}

TEST(MultiWorker, MeanOfOnReadVariableLeavesOutReplicasWithoutUpdatesOnEveryWorker) {
  expect_no_error(run_workers(workers_with({2, 1, 1}), [](MultiWorkerMirroredStrategy& strategy) {
    const auto scope = strategy.scope();
    Variable v(Tensor::zeros({}), {.name = "v",
                                   .synchronization = VariableSynchronization::kOnRead,
                                   .aggregation = VariableAggregation::kMean});
    const auto update_in = [&](int replica, double value) {
      strategy.run([&] {
        if (replica_number() == replica) v.assign(value);
      });
    };
    update_in(0, 2.0);
    update_in(2, 8.0);
    EXPECT_EQ(v.value().item(), 5.0f);
    update_in(2, 8.0);
    EXPECT_EQ(v.value().item(), 6.0f);  // (2 + 2 * 8) / 3
    strategy.run([&] {
      const AggregateOnReadScope over_replicas;
      EXPECT_EQ(v.value().item(), 6.0f);
    });
    const std::vector<NamedTensor> saved = v.storage().save();
    v.assign(0.0);
    v.storage().restore([&](const std::string& name) {
      const auto found = std::ranges::find(saved, name, &NamedTensor::name);
      return found == saved.end() ? Tensor() : found->value;
    });
    EXPECT_EQ(v.value().item(), 6.0f);
  }));
}

/// One step with the gradients that `give` makes for replica r; the weights of each worker after
/// it.
template <class Give>
std::vector<std::vector<double>> weights_after_step(const std::vector<int>& replicas,
                                                    const Give& give,
                                                    const CommunicationOptions& options = {},
                                                    std::vector<std::string>* errors = nullptr) {
  std::vector<std::vector<double>> weights(replicas.size());
  std::vector<LocalStrategyOptions> of_workers = workers_with(replicas);
  for (auto& each : of_workers) each.cross_device_ops.options = options;
  const auto thrown = run_workers(
      of_workers,
      [&](MultiWorkerMirroredStrategy& strategy) {
        const auto scope = strategy.scope();
        Variable w(Tensor::zeros({2, 1}), {.name = "w"});
        Sgd sgd(std::vector<Variable>{w}, {.learning_rate = 1.0});
        strategy.run([&] {
          const Gradient gradient = give(ReplicaContext::current().replica_id());
          sgd.apply_gradients(std::vector<Gradient>{gradient});
        });
        weights[static_cast<std::size_t>(strategy.worker())] = numbers(w.value());
      },
      Between::kMessages);
  if (errors) {
    *errors = thrown;
  } else {
    expect_no_error(thrown);
  }
  return weights;
}

Tensor column(float a, float b) { return Tensor::from<float>({2, 1}, {a, b}); }

/// The sum of random gradients of this type, one per replica.
std::vector<double> sum_of_random_gradients(Strategy& strategy, DType dtype) {
  const auto scope = strategy.scope();
  const std::vector<Variable> variables{Variable(Tensor::zeros({5'000}, dtype), {.name = "w"})};
  const auto sums = strategy.run([&] {
    const auto r = static_cast<std::uint64_t>(ReplicaContext::current().replica_id());
    GradientReducer& reducer = *GradientReducer::current();
    reducer.begin(variables);
    reducer.ready(0, cast(random_normal({5'000}, RandomKey{3, kUserPurpose, r, 0, 0}), dtype));
    const std::vector<Gradient> reduced = reducer.finish();
    reducer.updates_done();
    return reduced[0].dense();
  });
  EXPECT_EQ(sums[0].dtype(), dtype);
  return numbers(sums[0]);
}

// Partial sums of 16-bit numbers travel as float32: rounding them in between would show here.
TEST(MultiWorker, SixteenBitGradientsAreRoundedOnce) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat64}) {
    const std::vector<double> expected = sum_of_random_gradients(*mirrored(1, 5), dtype);
    for (const std::vector<int>& replicas : {std::vector{1, 1, 1, 1, 1}, {2, 2, 1}, {3, 2}}) {
      std::vector<std::vector<double>> sums(replicas.size());
      expect_no_error(run_workers(
          workers_with(replicas),
          [&](MultiWorkerMirroredStrategy& strategy) {
            sums[static_cast<std::size_t>(strategy.worker())] =
                sum_of_random_gradients(strategy, dtype);
          },
          Between::kMessages));
      for (const std::vector<double>& sum : sums) EXPECT_EQ(sum, expected) << dtype;
    }
  }
}

TEST(MultiWorker, MissingGradientsOnOneWorkerCountAsZeros) {
  const auto weights = weights_after_step(
      {1, 1}, [](int r) { return r == 0 ? Gradient(column(1, 2)) : Gradient(); });
  EXPECT_EQ(weights[0], (std::vector<double>{-1, -2}));
  EXPECT_EQ(weights[1], weights[0]);
}

TEST(MultiWorker, SlicesOnOneWorkerAndDenseGradientsOnAnotherAreAdded) {
  const auto weights = weights_after_step({1, 2}, [](int r) {
    if (r == 0) {
      return Gradient(IndexedSlices{Tensor::from<float>({1, 1}, {5}),
                                    Tensor::from<std::int64_t>({1}, {1}), Shape{2, 1}});
    }
    return Gradient(column(1, 1));
  });
  EXPECT_EQ(weights[0], (std::vector<double>{-2, -7}));
  EXPECT_EQ(weights[1], weights[0]);
}

TEST(MultiWorker, ANonFiniteGradientIsNamedOnEveryWorker) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto give = [nan](int r) { return Gradient(r == 2 ? column(0, nan) : column(1, 1)); };
  std::vector<std::string> errors;
  weights_after_step({2, 1}, give, {.non_finite = NonFinitePolicy::kError}, &errors);
  for (const std::string& error : errors) {
    EXPECT_THAT(error,
                ::testing::HasSubstr("Variable 'w' is not finite at flat index 1 on replica 2"));
  }
  const auto skipped = weights_after_step({2, 1}, give, {.non_finite = NonFinitePolicy::kSkip});
  EXPECT_EQ(skipped, (std::vector<std::vector<double>>{{0, 0}, {0, 0}}));
  const auto zeroed = weights_after_step({2, 1}, give, {.non_finite = NonFinitePolicy::kZero});
  EXPECT_EQ(zeroed, (std::vector<std::vector<double>>{{-2, -2}, {-2, -2}}));
}

TEST(MultiWorker, DifferentInitialValuesAreRefusedOnEveryWorker) {
  const auto errors = run_workers(workers_with({1, 1}), [](MultiWorkerMirroredStrategy& strategy) {
    const auto scope = strategy.scope();
    const Variable w(Tensor::full({2}, strategy.worker()), {.name = "w"});
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, ::testing::HasSubstr("the workers make different variables: worker 0 'w'"));
    EXPECT_THAT(error, ::testing::HasSubstr("worker 1 'w'"));
  }
}

TEST(MultiWorker, AnErrorInOneWorkersStepEndsTheOthersNamingIt) {
  const auto errors = run_workers(
      workers_with({1, 2}),
      [](MultiWorkerMirroredStrategy& strategy) {
        const auto scope = strategy.scope();
        Variable w(Tensor::zeros({3}), {.name = "w"});
        Sgd sgd(std::vector<Variable>{w});
        strategy.run([&] {
          GradientTape tape;
          const Tensor loss = reduce_sum(w.value());
          if (ReplicaContext::current().replica_id() == 2) {
            fail(ErrorCode::kResourceExhausted, "Running out of resources");
          }
          sgd.minimize(tape, loss);
        });
      },
      Between::kMessages);
  EXPECT_THAT(errors[0],
              ::testing::HasSubstr("worker 1, replica 2, step 0: Running out of resources"));
  EXPECT_THAT(errors[1], ::testing::HasSubstr("replica 2, step 0: Running out of resources"));
}

TEST(MultiWorker, DifferentCallsAreAnErrorThatNamesBoth) {
  const auto errors = run_workers(
      workers_with({1, 1}),
      [](MultiWorkerMirroredStrategy& strategy) {
        strategy.run([&] {
          ReplicaContext& context = ReplicaContext::current();
          if (context.replica_id() == 0) {
            context.all_reduce(ReduceOp::kSum, vec({1, 2}));
          } else {
            context.all_reduce(ReduceOp::kSum, vec({1, 2, 3}));
          }
        });
      },
      Between::kMessages);
  for (const std::string& error : errors) {
    EXPECT_THAT(error, ::testing::HasSubstr("all_reduce(SUM, float32 [2])"));
    EXPECT_THAT(error, ::testing::HasSubstr("all_reduce(SUM, float32 [3])"));
  }
}

TEST(MultiWorker, AWorkerThatReturnedIsMissedByName) {
  const auto errors = run_workers(
      workers_with({1, 1}),
      [](MultiWorkerMirroredStrategy& strategy) {
        if (strategy.worker() == 1) return;
        strategy.run([] { return ReplicaContext::current().all_reduce(ReduceOp::kSum, num(1)); });
      },
      Between::kMessages, {.timeout = std::chrono::milliseconds(300)});
  EXPECT_THAT(errors[0], ::testing::HasSubstr("rank 1"));
  EXPECT_EQ(errors[1], "");
}

TEST(MultiWorker, NcclForReplicasOnCpusIsRefusedOnEveryWorker) {
  LocalStrategyOptions options = on_cpus(2);
  options.cross_device_ops.options.implementation = CommunicationImplementation::kNccl;
  for (const std::string& error : run_workers({options, options}, [](auto&) {})) {
    EXPECT_THAT(error, ::testing::HasSubstr("implementation NCCL: worker 0 has replicas on cpu:0, "
                                            "cpu:1, and NCCL works on GPUs alone"));
  }
  for (const std::string& error : run_workers({options, on_cpus(1)}, [](auto&) {})) {
    EXPECT_THAT(error, ::testing::HasSubstr("worker 1 names another implementation"));
  }
  options.cross_device_ops.name = "ring";
  for (const std::string& error : run_workers({options, options}, [](auto&) {})) {
    EXPECT_THAT(error, ::testing::HasSubstr("implementation NCCL is the operation 'nccl'"));
  }
}

TEST(MultiWorker, AnAlgorithmWithoutOrderTrainsAndSaysSo) {
  std::vector<Trained> trained(2);
  expect_no_error(run_workers(workers_with({2, 2}),
                              [&](MultiWorkerMirroredStrategy& strategy) {
                                trained[static_cast<std::size_t>(strategy.worker())] =
                                    train(strategy);
                              },
                              Between::kMessages, {.algorithm = "ring"}));
  EXPECT_EQ(trained[0].weights, trained[1].weights);
  std::vector<LocalStrategyOptions> options = workers_with({1, 1});
  for (auto& each : options) each.deterministic = true;
  const auto errors = run_workers(options, [](auto&) {}, Between::kMessages, {.algorithm = "ring"});
  EXPECT_THAT(errors[0], ::testing::HasSubstr("'ring' does not add in canonical order"));
}

}  // namespace
}  // namespace tutti::strategy_tests
