// Tests several workers, each a thread with its own strategy: results are bit-identical to those of
// one process, and errors name the worker.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/multi_worker_mirrored_strategy.h"

#include <limits>

#include "tests/strategy/toy_training.h"
#include "tests/strategy/worker_threads.h"
#include "tutti/optimizer/gradient_reducer.h"

namespace tutti::strategy_tests::multi_worker_test {
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

void expect_bits_of_one_process(const std::vector<int>& replicas, Between between,
                                const std::string& algorithm = "canonical") {
  int total = 0;
  for (const int count : replicas) total += count;
  const auto trained =
      results_of_workers(workers_with(replicas), [](auto& strategy) { return train(strategy); },
                         between, {.algorithm = algorithm});
  EXPECT_THAT(trained, Each(train(*mirrored(1, total))))
      << "replicas " << join(replicas) << " over " << algorithm;
}

TEST(MultiWorker, TrainingMatchesOneProcessBitForBit) {
  expect_bits_of_one_process({1}, Between::kMemory);
  expect_bits_of_one_process({1, 1}, Between::kMemory);
  expect_bits_of_one_process({1, 1}, Between::kMessages);
  expect_bits_of_one_process({2, 2}, Between::kMessages);
  expect_bits_of_one_process({1, 1, 1}, Between::kMessages);
  expect_bits_of_one_process({1, 1, 1, 1}, Between::kMessages, "hierarchical_copy");
  // Except for {2, 1, 1}, the replicas of one worker do not form a subtree of the canonical sum.
  expect_bits_of_one_process({3, 3}, Between::kMessages);
  expect_bits_of_one_process({1, 3}, Between::kMessages);
  expect_bits_of_one_process({3, 1}, Between::kMemory);
  expect_bits_of_one_process({2, 1, 1}, Between::kMessages);
  expect_bits_of_one_process({1, 2, 3}, Between::kMessages);
}

TEST(MultiWorker, ReplicasAreDistributedAcrossWorkers) {
  const std::vector<LocalStrategyOptions> options(3, on_cpus(1, 4));
  const auto seen = results_of_workers(options, [](MultiWorkerMirroredStrategy& strategy) {
    const auto ids = strategy.run([] { return ReplicaContext::current().replica_id(); });
    EXPECT_EQ(strategy.num_workers(), 3);
    EXPECT_EQ(strategy.first_replica(), ids[0]);
    EXPECT_EQ(strategy.num_replicas_in_sync(), 4);
    return ids.values();
  });
  EXPECT_EQ(seen, (std::vector<std::vector<int>>{{0, 1}, {2}, {3}}));
}

TEST(MultiWorker, FewerReplicasThanDevicesAreRejected) {
  const auto errors = run_workers({on_cpus(2, 3), on_cpus(2, 3)}, [](auto&) {});
  EXPECT_THAT(errors[1], HasSubstr("3 replicas over 2 workers give worker 1 a share of 1"));
}

/// Runs `body` once per replica on two workers, one with 2 replicas and one with 1; returns the
/// results in replica order.
template <class Fn>
std::vector<Tensor> by_replica(const Fn& body) {
  const auto results = results_of_workers(
      workers_with({2, 1}), [&](Strategy& strategy) { return strategy.run(body).values(); },
      Between::kMessages);
  return {results[0][0], results[0][1], results[1][0]};
}

TEST(MultiWorker, CollectivesSpanReplicasOfAllWorkers) {
  const auto expect_each = [](const char* what, const std::function<Tensor()>& body,
                              const std::vector<double>& expected) {
    for (const Tensor& each : by_replica(body)) EXPECT_EQ(numbers(each), expected) << what;
  };
  const auto all_reduce = [](ReduceOp op, const Tensor& value) {
    return ReplicaContext::current().all_reduce(op, value);
  };
  expect_each("sum", [&] { return all_reduce(ReduceOp::kSum, num(replica_number() + 1.0)); }, {6});
  expect_each("maximum", [&] { return all_reduce(ReduceOp::kMax, num(replica_number())); }, {2});
  // The gathered lengths differ between replicas; the result is in replica order.
  const auto copies_of_number = [] {
    return vec(std::vector<float>(static_cast<std::size_t>(replica_number()), replica_number()));
  };
  expect_each("all_gather",
              [&] { return ReplicaContext::current().all_gather(copies_of_number(), 0); },
              {1, 2, 2});
  // Returns d/dx_r of the sum over replicas s of (sum of x)^2 * s.
  const auto gradient_of_sum = [&] {
    GradientTape tape;
    const Tensor x = num(replica_number() + 1.0);
    tape.watch(x);
    const Tensor sum = all_reduce(ReduceOp::kSum, x);
    return tape.gradient(square(sum) * replica_number(), x).dense();
  };
  expect_each("gradient", gradient_of_sum, {2 * 6 * (0 + 1 + 2)});
}

/// Returns IndexedSlices for a tensor [rows, 1] with one slice: `value` in row `row`.
IndexedSlices element(std::int64_t row, float value, std::int64_t rows) {
  return {Tensor::from<float>({1, 1}, {value}), Tensor::from<std::int64_t>({1}, {row}),
          Shape{rows, 1}};
}

TEST(MultiWorker, AllReduceKeepsOrderOfDenseAndSparseValues) {
  const auto results = results_of_workers(
      workers_with({1, 1}),
      [](Strategy& strategy) {
        return strategy.run([] {
          const std::vector<Gradient> tuple = {element(0, 1, 5), num(1), element(2, 3, 5), num(2)};
          return ReplicaContext::current().all_reduce(ReduceOp::kSum, tuple);
        })[0];
      },
      Between::kMessages);
  for (const std::vector<Gradient>& sums : results) {
    ASSERT_EQ(sums.size(), 4u);
    EXPECT_TRUE(sums[0].is_slices() && sums[2].is_slices());
    EXPECT_EQ(numbers(sums[0].to_dense()), (std::vector<double>{2, 0, 0, 0, 0}));
    EXPECT_EQ(sums[1].dense().item(), 2.0f);
    EXPECT_EQ(numbers(sums[2].to_dense()), (std::vector<double>{0, 0, 6, 0, 0}));
    EXPECT_EQ(sums[3].dense().item(), 4.0f);
  }
}

TEST(MultiWorker, ReduceAndGatherSpanAllWorkers) {
  on_workers({2, 1}, [](MultiWorkerMirroredStrategy& strategy) {
    const auto values = strategy.run([] { return vec({replica_number(), 1.0f}); });
    EXPECT_EQ(numbers(strategy.reduce(ReduceOp::kSum, values)), (std::vector<double>{3, 3}));
    EXPECT_EQ(numbers(strategy.reduce(ReduceOp::kMean, values)), (std::vector<double>{1, 1}));
    EXPECT_EQ(strategy.reduce(ReduceOp::kSum, values, 0).item(), 6.0f);
    EXPECT_EQ(numbers(strategy.gather(values, 0)), (std::vector<double>{0, 1, 1, 1, 2, 1}));
    const std::vector<Device> here = {Device{}};
    EXPECT_EQ(numbers(strategy.reduce_to(ReduceOp::kSum, values, here)[0]),
              (std::vector<double>{3, 3}));
    // docs/deviations.md: tf counts an undistributed value once per worker.
    EXPECT_EQ(strategy.reduce(ReduceOp::kMean, num(1.0)).item(), 1.0f);
    EXPECT_INVALID(strategy.reduce(ReduceOp::kSum, num(1.0)), "not distributed");
  });
}

TEST(MultiWorker, AssignmentsInReplicasAggregateAcrossWorkers) {
  on_workers({1, 2}, [](MultiWorkerMirroredStrategy& strategy) {
    const auto scope = strategy.scope();
    Variable mean(Tensor::zeros({}), {.name = "mean", .aggregation = VariableAggregation::kMean});
    Variable first(Tensor::zeros({}),
                   {.name = "first", .aggregation = VariableAggregation::kOnlyFirstReplica});
    Variable rows(Tensor::zeros({3, 1}),
                  {.name = "rows", .aggregation = VariableAggregation::kSum});
    strategy.run([&] {
      mean.assign(num(replica_number() * 3.0));
      first.assign_add(num(replica_number() + 7.0));
      rows.scatter_add(element(ReplicaContext::current().replica_id(), replica_number() + 1.0f, 3));
    });
    EXPECT_EQ(components(mean),
              copies_of(3.0, static_cast<int>(strategy.replica_devices().size())));
    EXPECT_EQ(first.value().item(), 7.0f);
    EXPECT_EQ(numbers(rows.value()), (std::vector<double>{1, 2, 3}));
    strategy.run([&] { mean.assign(2.5); });  // the mean of equal values is that value
    EXPECT_EQ(mean.value().item(), 2.5f);
  });
}

TEST(MultiWorker, OnReadVariablesAreAggregatedAndRestoredAcrossWorkers) {
  const auto make = [](MultiWorkerMirroredStrategy& strategy) {
    const auto scope = strategy.scope();
    return on_read(Tensor::zeros({}), VariableAggregation::kSum, "count");
  };
  const auto saved = results_of_workers(workers_with({2, 1}), [&](auto& strategy) {
    Variable count = make(strategy);
    strategy.run([&] { count.assign_add(num(replica_number() + 1.0)); });
    EXPECT_EQ(count.value().item(), 6.0f);
    return count.storage().save();
  });
  ASSERT_EQ(saved[0].size(), 4u);
  EXPECT_EQ(saved[0][0].value.item(), 6.0f);
  EXPECT_EQ(saved[0][3].name, "count/replica_2");
  EXPECT_EQ(saved[0][3].value.item(), 3.0f);
  // If the number of replicas is unchanged, each replica gets its own value back; otherwise the
  // total is divided equally among the replicas.
  for (const auto& [replicas, expected] :
       {std::pair(std::vector<int>{1, 2}, std::vector<double>{1, 2, 3}),
        std::pair(std::vector<int>{1, 1}, std::vector<double>{3, 3})}) {
    std::vector<double> restored(expected.size());
    expect_no_error(run_workers(workers_with(replicas), [&](MultiWorkerMirroredStrategy& strategy) {
      Variable count = make(strategy);
      count.storage().restore(lookup_in(saved[0]));
      const std::vector<double> own = components(count);
      std::ranges::copy(own, restored.begin() + strategy.first_replica());
    }));
    EXPECT_EQ(restored, expected);
  }
}

TEST(MultiWorker, OnReadMeanExcludesReplicasWithoutUpdates) {
  expect_no_error(run_workers(workers_with({2, 1, 1}), [](MultiWorkerMirroredStrategy& strategy) {
    const auto scope = strategy.scope();
    Variable v = on_read(Tensor::zeros({}), VariableAggregation::kMean);
    const auto update_in = [&](int replica, double value) {
      strategy.run([&] {
        if (replica_number() == replica) v.assign(value);
      });
    };
    update_in(0, 2.0);
    update_in(2, 8.0);
    EXPECT_EQ(v.value().item(), 5.0f);
    update_in(2, 8.0);
    EXPECT_EQ(v.value().item(), 6.0f);  // mean of 2, 8 and 8
    strategy.run([&] {
      const AggregateOnReadScope over_replicas;
      EXPECT_EQ(v.value().item(), 6.0f);
    });
    const TensorLookup saved = lookup_in(v.storage().save());
    v.assign(0.0);
    v.storage().restore(saved);
    EXPECT_EQ(v.value().item(), 6.0f);
  }));
}

/// Function that returns replica r's gradient, which has shape [2, 1].
using GradientOf = std::function<Gradient(int r)>;

/// Returns the weights, which start at 0, after one step with learning rate 1.
std::vector<double> weights_after_step(Strategy& strategy, const GradientOf& gradient_of) {
  const auto scope = strategy.scope();
  Variable w(Tensor::zeros({2, 1}), {.name = "w"});
  Sgd sgd(std::vector<Variable>{w}, {.learning_rate = 1.0});
  strategy.run([&] {
    sgd.apply_gradients(std::vector{gradient_of(ReplicaContext::current().replica_id())});
  });
  return numbers(w.value());
}

std::vector<std::vector<double>> weights_of_workers(const std::vector<int>& replicas,
                                                    const GradientOf& gradient_of,
                                                    NonFinitePolicy policy = {}) {
  std::vector<LocalStrategyOptions> options = workers_with(replicas);
  for (auto& each : options) each.cross_device_ops.options.non_finite = policy;
  return results_of_workers(
      options, [&](Strategy& strategy) { return weights_after_step(strategy, gradient_of); },
      Between::kMessages);
}

Tensor column(float a, float b) { return Tensor::from<float>({2, 1}, {a, b}); }

/// Returns the sum over replicas of random gradients of type `dtype`.
std::vector<double> sum_of_random_gradients(Strategy& strategy, DType dtype) {
  const auto scope = strategy.scope();
  const Variable variable(Tensor::zeros({5'000}, dtype), {.name = "w"});
  const auto sums = strategy.run([&] {
    const auto r = static_cast<std::uint64_t>(ReplicaContext::current().replica_id());
    return summed(variable,
                  cast(random_normal({5'000}, RandomKey{3, kUserPurpose, r, 0, 0}), dtype));
  });
  EXPECT_EQ(sums[0].dtype(), dtype);
  return numbers(sums[0]);
}

// Partial sums of 16-bit numbers are sent as float32, because intermediate rounding would change
// the result.
TEST(MultiWorker, SixteenBitGradientsAreRoundedOnce) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat64}) {
    const std::vector<double> expected = sum_of_random_gradients(*mirrored(1, 5), dtype);
    for (const std::vector<int>& replicas : {std::vector{1, 1, 1, 1, 1}, {2, 2, 1}, {3, 2}}) {
      const auto sums = results_of_workers(
          workers_with(replicas),
          [&](Strategy& strategy) { return sum_of_random_gradients(strategy, dtype); },
          Between::kMessages);
      for (const std::vector<double>& sum : sums) EXPECT_EQ(sum, expected) << dtype;
    }
  }
}

TEST(MultiWorker, GradientsAreSummedOverWorkers) {
  using Weights = std::vector<std::vector<double>>;
  const auto of_replica_0 = [](int r) { return r == 0 ? Gradient(column(1, 2)) : Gradient(); };
  EXPECT_EQ(weights_of_workers({1, 1}, of_replica_0), (Weights{{-1, -2}, {-1, -2}}));
  const auto sparse_and_dense = [](int r) {
    return r == 0 ? Gradient(element(1, 5, 2)) : Gradient(column(1, 1));
  };
  EXPECT_EQ(weights_of_workers({1, 2}, sparse_and_dense), (Weights{{-2, -7}, {-2, -7}}));
  const auto with_nan = [](int r) {
    return Gradient(r == 2 ? column(0, std::numeric_limits<float>::quiet_NaN()) : column(1, 1));
  };
  EXPECT_EQ(weights_of_workers({2, 1}, with_nan, NonFinitePolicy::kSkip),
            (Weights{{0, 0}, {0, 0}}));
  std::vector<LocalStrategyOptions> options = workers_with({2, 1});
  for (auto& each : options) each.cross_device_ops.options.non_finite = NonFinitePolicy::kError;
  EXPECT_THAT(run_workers(
                  options, [&](auto& strategy) { weights_after_step(strategy, with_nan); },
                  Between::kMessages),
              Each(HasSubstr("Variable 'w' is not finite at flat index 1 on replica 2")));
}

TEST(MultiWorker, DifferentInitialValuesFailOnEveryWorker) {
  const auto errors = run_workers(workers_with({1, 1}), [](MultiWorkerMirroredStrategy& strategy) {
    const auto scope = strategy.scope();
    const Variable w(Tensor::full({2}, strategy.worker()), {.name = "w"});
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("the workers create different variables: worker 0 'w'"),
                                 HasSubstr("worker 1 'w'"))));
}

TEST(MultiWorker, StepErrorIsReportedByAllWorkers) {
  on_workers({1, 2}, [](MultiWorkerMirroredStrategy& strategy) {
    const auto scope = strategy.scope();
    Variable w(Tensor::zeros({3}), {.name = "w"});
    Sgd sgd(std::vector<Variable>{w});
    const auto step = [&] {
      GradientTape tape;
      const Tensor loss = reduce_sum(w.value());
      if (ReplicaContext::current().replica_id() == 2) {
        fail(ErrorCode::kResourceExhausted, "Running out of resources");
      }
      sgd.minimize(tape, loss);
    };
    // docs/deviations.md: in tf, all workers raise errors of the same type.
    const bool is_other = strategy.worker() == 0;
    thrown::expect_error(
        is_other ? ErrorCode::kAborted : ErrorCode::kResourceExhausted,
        {concat(is_other ? "worker 1, " : "", "replica 2, step 0: Running out of resources")},
        [&] { strategy.run(step); });
  });
}

TEST(MultiWorker, MismatchedCollectivesErrorNamesBothCalls) {
  const auto errors = run_workers(
      workers_with({1, 1}),
      [](MultiWorkerMirroredStrategy& strategy) {
        strategy.run([&] {
          const int width = 2 + ReplicaContext::current().replica_id();
          ReplicaContext::current().all_reduce(ReduceOp::kSum, Tensor::ones({width}));
        });
      },
      Between::kMessages);
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("all_reduce(SUM, float32 [2])"),
                                 HasSubstr("all_reduce(SUM, float32 [3])"))));
}

TEST(MultiWorker, TimeoutNamesWorkerThatReturned) {
  const auto errors = run_workers(
      workers_with({1, 1}),
      [](MultiWorkerMirroredStrategy& strategy) {
        if (strategy.worker() == 1) return;
        strategy.run([] { return ReplicaContext::current().all_reduce(ReduceOp::kSum, num(1)); });
      },
      Between::kMessages, {.timeout = std::chrono::milliseconds(300)});
  EXPECT_THAT(errors, ElementsAre(HasSubstr("rank 1"), ""));
}

/// Returns worker 0's error code for a collective call that worker 1, although connected, never
/// makes.
ErrorCode code_of_lonely_call(const WorkerBody& call) {
  ErrorCode code = ErrorCode::kOk;
  Event is_done;
  expect_no_error(run_workers(workers_with({1, 1}),
                              [&](MultiWorkerMirroredStrategy& strategy) {
                                if (strategy.worker() == 1) {
                                  is_done.wait_until(deadline_after(Clock::system().now(),
                                                                    std::chrono::seconds(90)));
                                  return;
                                }
                                code = error_of([&] { call(strategy); }).code();
                                is_done.set();
                              },
                              Between::kMemory, {.timeout = std::chrono::seconds(3)}));
  return code;
}

TEST(MultiWorker, CallMissingOnOneWorkerTimesOut) {
  const auto value = [] { return PerReplica<Tensor>({num(1.0)}); };
  const auto all_reduce = [](std::size_t count) {
    return [count](Strategy& strategy) {
      strategy.run([&] {
        const std::vector<Gradient> sparse(count, Gradient(element(0, 1, 5)));
        ReplicaContext::current().all_reduce(ReduceOp::kSum, sparse);
      });
    };
  };
  const WorkerBody calls[] = {[&](auto& strategy) { strategy.reduce(ReduceOp::kSum, value()); },
                              [&](auto& strategy) {
                                const std::pair<PerReplica<Tensor>, std::vector<Device>> pairs[] = {
                                    {value(), {Device{}}}, {value(), {Device{}}}};
                                strategy.batch_reduce_to(ReduceOp::kSum, pairs);
                              },
                              all_reduce(1), all_reduce(2)};
  // The calls run concurrently, because each waits for its timeout.
  expect_no_error(errors_of_ranks(4, [&](int call) {
    EXPECT_EQ(code_of_lonely_call(calls[call]), ErrorCode::kDeadlineExceeded) << "call " << call;
  }));
}

TEST(MultiWorker, NcclOnCpuReplicasFailsOnEveryWorker) {
  const auto expect_refusal = [](const LocalStrategyOptions& first,
                                 const LocalStrategyOptions& second, const char* text) {
    EXPECT_THAT(run_workers({first, second}, [](auto&) {}), Each(HasSubstr(text)));
  };
  LocalStrategyOptions options = on_cpus(2);
  options.cross_device_ops.options.implementation = CommunicationImplementation::kNccl;
  expect_refusal(options, options,
                 "implementation NCCL: worker 0 has replicas on cpu:0, cpu:1, and NCCL works "
                 "only on GPUs");
  expect_refusal(
      options, on_cpus(1),
      "worker 1 selects a communication implementation (AUTO, NCCL or another) that differs");
  options.cross_device_ops.name = "ring";
  expect_refusal(options, options, "implementation NCCL selects 'nccl'");
}

TEST(MultiWorker, TrainsWithRingUnlessDeterminismIsRequired) {
  const auto weights = results_of_workers(workers_with({2, 2}),
                                          [](auto& strategy) { return train(strategy).weights; },
                                          Between::kMessages, {.algorithm = "ring"});
  EXPECT_EQ(weights[0], weights[1]);
  std::vector<LocalStrategyOptions> options = workers_with({1, 1});
  for (auto& each : options) each.deterministic = true;
  const auto errors = run_workers(options, [](auto&) {}, Between::kMessages, {.algorithm = "ring"});
  EXPECT_THAT(errors[0], HasSubstr("'ring' does not add in canonical order"));
}

}  // namespace tutti::strategy_tests::multi_worker_test
