// Tests functions that run on all replicas: results, arguments, exceptions, merge calls, and
// warnings that are logged once.
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <stdexcept>

#include "tests/strategy/strategy_helpers.h"
#include "tests/support/warnings.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/autograd/replica_group.h"
#include "tutti/core/clock.h"
#include "tutti/core/executor.h"
#include "tutti/core/random.h"
#include "tutti/optimizer/gradient_reducer.h"
#include "tutti/optimizer/optimizers.h"

namespace tutti::strategy_tests::replica_run_test {
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using thrown::warnings_of;
using RunOnEveryStrategy = AllStrategies;
INSTANTIATE_TEST_SUITE_P(, RunOnEveryStrategy, ::testing::ValuesIn(all_strategies()), case_name);

TEST_P(RunOnEveryStrategy, MergeCallRunsOnceOnCallerThread) {
  int calls = 0;
  static thread_local int marker = 0;
  marker = 17;  // thread-local value of the thread that calls run()
  const auto results = strategy_->run([&] {
    ReplicaContext& context = ReplicaContext::current();
    const int doubled = context.merge_call(
        [&](Strategy& strategy, const PerReplica<int>& values) {
          ++calls;
          EXPECT_EQ(marker, 17);
          EXPECT_EQ(get_cross_replica_context(), &strategy);
          EXPECT_EQ(get_replica_context(), nullptr);
          EXPECT_EQ(GradientReducer::current(), nullptr);
          return values.map([](int x) { return 2 * x; });
        },
        context.replica_id());
    const int common = context.merge_call(
        [](Strategy&, const PerReplica<int>& values) { return static_cast<int>(values.size()); },
        0);
    EXPECT_NE(get_replica_context(), nullptr);
    return doubled + 100 * common;
  });
  EXPECT_EQ(calls, 1);
  for (int r = 0; r < replicas(); ++r) {
    EXPECT_EQ(results[static_cast<std::size_t>(r)], 2 * r + 100 * replicas());
  }
}

TEST_P(RunOnEveryStrategy, MergeFunctionMayNestRunAndMergeCall) {
  std::atomic<int> inner_bodies = 0;
  const auto results = strategy_->run([&] {
    return ReplicaContext::current().merge_call(
        [&](Strategy& strategy, const PerReplica<int>&) {
          const PerReplica<int> inner = strategy.run([&] {
            ++inner_bodies;
            ReplicaContext& context = ReplicaContext::current();
            const int sum = context.merge_call(
                [&](Strategy& deeper, const PerReplica<int>& ids) {
                  const auto innermost = deeper.run([](int id) { return 10 * id; }, ids);
                  int total = 0;
                  for (const int each : innermost) total += each;
                  return total;
                },
                context.replica_id());
            return sum + context.replica_id();
          });
          return inner;
        },
        0);
  });
  const int total = 10 * replicas() * (replicas() - 1) / 2;
  EXPECT_EQ(inner_bodies, replicas());
  for (int r = 0; r < replicas(); ++r) EXPECT_EQ(results[static_cast<std::size_t>(r)], total + r);
}

struct Odd : std::runtime_error {
  using std::runtime_error::runtime_error;
};

TEST_P(RunOnEveryStrategy, ExceptionsKeepTheirType) {
  EXPECT_THROW(strategy_->run([] { throw Odd("in the replica"); }), Odd);
  EXPECT_THROW(strategy_->run([] {
    ReplicaContext::current().merge_call(
        [](Strategy&, const PerReplica<int>&) { throw Odd("in the merge function"); }, 0);
  }),
               Odd);
  const auto nested = [] {
    ReplicaContext::current().merge_call(
        [](Strategy& strategy, const PerReplica<int>&) {
          strategy.run([] { throw Odd("in a nested replica"); });
        },
        0);
  };
  EXPECT_THROW(strategy_->run(nested), Odd);
  EXPECT_THROW(strategy_->run([&] {
    ReplicaContext::current().merge_call(
        [&](Strategy& strategy, const PerReplica<int>&) { strategy.run(nested); }, 0);
  }),
               Odd);
  EXPECT_EQ(strategy_->run([] { return 1; }).size(), static_cast<std::size_t>(replicas()));
}

TEST_P(RunOnEveryStrategy, ErrorNamesReplicaAndStep) {
  strategy_->run([] {});
  const Error error = error_of([&] {
    strategy_->run([&] {
      if (ReplicaContext::current().replica_id() == replicas() - 1) {
        fail(ErrorCode::kDataLoss, "reader: broken");
      }
      ReplicaContext::current().all_reduce(ReduceOp::kSum, num(1.0));
    });
  });
  EXPECT_EQ(error.code(), ErrorCode::kDataLoss);
  EXPECT_EQ(error.message(), concat("replica ", replicas() - 1, ", step 1: reader: broken"));
  EXPECT_EQ(strategy_->last_failure().replica, replicas() - 1);
  EXPECT_EQ(strategy_->last_failure().step, 1U);
  EXPECT_EQ(strategy_->last_failure().messages.size(), static_cast<std::size_t>(replicas()));
}

TEST_P(RunOnEveryStrategy, SavedStepCountsOnlySuccessfulOutermostRuns) {
  EXPECT_EQ(strategy_->save_state().at("step").as_int(), 0);
  strategy_->run([] {
    ReplicaContext::current().merge_call(
        [](Strategy& strategy, const PerReplica<int>&) { strategy.run([] {}); }, 0);
  });
  EXPECT_EQ(strategy_->save_state().at("step").as_int(), 1);
  EXPECT_THROW(strategy_->run([] { throw Odd("x"); }), Odd);
  EXPECT_EQ(strategy_->save_state().at("step").as_int(), 1);
  Json state = strategy_->save_state();
  state.set("random_step", 41);
  strategy_->restore_state(state);
  const auto steps = strategy_->run([] { return current_random_context().step; });
  EXPECT_EQ(steps[0], 41U);
  EXPECT_EQ(strategy_->run([] { return current_random_context().replica; }).values().back(),
            static_cast<std::uint32_t>(replicas() - 1));
}

TEST_P(RunOnEveryStrategy, RandomStepAdvancesOnlyIfRunUsesRandomNumbersOrTrains) {
  const auto random_step = [&] { return strategy_->save_state().at("random_step").as_int(); };
  strategy_->run([] { return 1.0; });
  EXPECT_EQ(random_step(), 0) << "evaluation draws nothing";
  strategy_->run([] { (void)random_uniform({2}); });
  EXPECT_EQ(random_step(), 1);
  const auto scope = strategy_->scope();
  const Variable x(Tensor::full({1}, 3.0f), {.name = "x"});
  Sgd sgd(std::vector{x});
  strategy_->run([&] {
    GradientTape tape;
    sgd.minimize(tape, square(x.value()));
  });
  EXPECT_EQ(random_step(), 2);
  Json of_older_version = strategy_->save_state();
  EXPECT_EQ(of_older_version.at("step").as_int(), 3);
  Json without = Json::object();
  for (const auto& [name, value] : of_older_version.as_object())
    if (name != "random_step") without.set(name, value);
  strategy_->restore_state(without);
  EXPECT_EQ(random_step(), 3) << "expected the number of runs";
}

TEST(RunArguments, PerReplicaArgumentsAreSplit) {
  auto strategy = mirrored(2);
  const auto result = strategy->run([](const Tensor& x) { return x * 1.25f; },
                                    PerReplica<Tensor>({Tensor(5.0f), Tensor(3.0f)}));
  EXPECT_EQ(numbers(result), (std::vector<double>{6.25, 3.75}));
  EXPECT_INVALID(strategy->run([](const Tensor&) {}, PerReplica<Tensor>({Tensor(5.0f)})),
                 "one per replica");
}

TEST(RunArguments, LocalResultsAreInReplicaOrder) {
  auto strategy = mirrored(3);
  const auto ids = strategy->run([] { return ReplicaContext::current().replica_id(); });
  EXPECT_EQ(strategy->local_results(ids), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(strategy->local_results(7), std::vector<int>{7});
}

TEST(RunThreads, ReplicasOnSameDeviceDoNotOverlap) {
  auto strategy = mirrored(1, 3);
  std::atomic<int> inside = 0;
  std::atomic<int> most = 0;
  for (int i = 0; i < 20; ++i) {
    strategy->run([&] {
      for (int k = 0; k < 3; ++k) {
        const int now = ++inside;
        if (now > most) most = now;
        --inside;
        ReplicaContext::current().all_reduce(ReduceOp::kSum, num(1.0));
      }
    });
  }
  EXPECT_EQ(most, 1);
}

TEST(RunThreads, SequentialReplicasRunInOrderUntilTheyBlock) {
  LocalStrategyOptions options = on_cpus(3);
  options.execution = ReplicaExecution::kSequential;
  MirroredStrategy strategy(options);
  for (int i = 0; i < 10; ++i) {
    std::vector<std::string> events;
    strategy.run([&] {
      ReplicaContext& context = ReplicaContext::current();
      events.push_back(concat("a", context.replica_id()));
      context.all_reduce(ReduceOp::kSum, num(1.0));
      events.push_back(concat("b", context.replica_id()));
      context.merge_call([&](Strategy&, const PerReplica<int>&) { events.push_back("m"); }, 0);
      events.push_back(concat("c", context.replica_id()));
    });
    EXPECT_EQ(join(events), "a0, a1, a2, b2, b0, b1, m, c0, c1, c2");
  }
}

TEST(RunThreads, RunsFromTwoThreadsDoNotOverlap) {
  auto strategy = mirrored(2);
  std::atomic<int> running = 0;
  std::atomic<bool> overlapped = false;
  const auto use = [&](float value) {
    for (int i = 0; i < 30; ++i) {
      const auto sums = strategy->run([&] {
        if (ReplicaContext::current().replica_id() == 0 && ++running > 1) overlapped = true;
        const Tensor sum = ReplicaContext::current().all_reduce(ReduceOp::kSum, num(value));
        if (ReplicaContext::current().replica_id() == 0) --running;
        return sum;
      });
      EXPECT_EQ(numbers(sums), copies_of(2.0 * value, 2));
      const PerReplica<Tensor> values({Tensor(value), Tensor(value)});
      const std::vector<Device> destinations = strategy->worker_devices();
      EXPECT_EQ(numbers(strategy->reduce_to(ReduceOp::kSum, values, destinations)),
                copies_of(2.0 * value, 2));
    }
  };
  auto a = Executor::system().start("user a", [&] { use(1.0f); });
  auto b = Executor::system().start("user b", [&] { use(2.0f); });
  a->join();
  b->join();
  EXPECT_FALSE(overlapped);
}

TEST(RunThreads, RunTimesIncludeReplicaWaitTime) {
  auto strategy = mirrored(2);
  Event is_there;
  strategy->run([&] {
    ReplicaContext& context = ReplicaContext::current();
    if (context.replica_id() == 0) is_there.set();
    if (context.replica_id() == 1) {
      is_there.wait_until(TimePoint::max());
      Clock::system().sleep_for(std::chrono::milliseconds(100));
    }
    context.all_reduce(ReduceOp::kSum, num(1.0));
  });
  const Strategy::RunTimes times = strategy->take_run_times();
  EXPECT_GE(times.run, 0.1);
  // The communication time is the mean over both replicas; replica 0 waited for about 0.1 s.
  EXPECT_GT(times.communication, 0.01);
  EXPECT_LT(times.communication, times.run);
  const Strategy::RunTimes none = strategy->take_run_times();
  EXPECT_EQ(none.run, 0.0);
  EXPECT_EQ(none.communication, 0.0);
}

TEST(RunThreads, CallerTapeDoesNotRecordReplicas) {
  auto strategy = mirrored(2);
  const Variable x(vec({3}), {.name = "x"});
  GradientTape tape;
  const Tensor square = x.value() * x.value();
  PerReplica<Tensor> inside = strategy->run([&] { return square.to(Device{}) * 5.0f; });
  const auto of_replica = tape.gradient(inside[0], std::vector<Variable>{x});
  EXPECT_TRUE(of_replica[0].is_none());
}

TEST(RunThreads, RestoredSeedOverridesGlobalSeed) {
  const auto seed_in_run = [](Strategy& strategy) {
    return strategy.run([] { return current_random_context().seed; })[0];
  };
  const std::uint64_t before = random_seed();
  auto strategy = mirrored(2);
  set_random_seed(11);
  EXPECT_EQ(seed_in_run(*strategy), 11U);
  const Json state = strategy->save_state();
  set_random_seed(12);
  EXPECT_EQ(seed_in_run(*strategy), 12U);
  strategy->restore_state(state);
  EXPECT_EQ(seed_in_run(*strategy), 11U);
  set_random_seed(before);
}

TEST(RunThreads, WarnsOnceAboutUnequalBatchRows) {
  auto strategy = mirrored(3);
  const auto step_with_rows = [&](std::int64_t last) {
    strategy->run([&] {
      const bool is_last = ReplicaContext::current().replica_id() == 2;
      ReplicaGroup::current("test").assume_equal_rows(is_last ? last : 4);
    });
  };
  const auto warnings = warnings_of([&] {
    for (const std::int64_t last : {4, 1, 2}) step_with_rows(last);
  });
  EXPECT_THAT(warnings, ElementsAre(HasSubstr(
                            "step 1 of 'mirrored': replicas have different numbers of rows, "
                            "[4, 4, 1]")));
}

TEST(RunThreads, StrategyDestructorJoinsThreads) {
  const int before = num_running_threads();
  {
    auto strategy = mirrored(3);
    strategy->run([] {});
    EXPECT_EQ(num_running_threads(), before + 2);  // replica 0 runs on this thread
  }
  EXPECT_EQ(num_running_threads(), before);
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using LossOf = std::function<Tensor(const Tensor& per_example)>;
/// Returns the warnings from three steps in which the replicas minimize `loss` over 4 rows each.
std::vector<std::string> warnings_of_loss(Strategy& strategy, const LossOf& loss,
                                          bool own_mean = false) {
  auto scope = strategy.scope();
  const Variable w(Tensor::ones({3, 1}), {.name = "w"});
  Sgd optimizer(std::vector{w}, {.learning_rate = 0.01});
  const auto step = [&](const Batch& batch) {
    GradientTape tape;
    const Tensor target = loss(reduce_sum(square(matmul(batch.features(), w)), 1));
    if (!own_mean) return optimizer.minimize(tape, target);
    const std::vector<Gradient> gradients = tape.gradient(target, std::vector{w});
    optimizer.apply_gradients(ReplicaContext::current().all_reduce(ReduceOp::kMean, gradients),
                              {.aggregation = GradientAggregation::kNone});
  };
  const std::int64_t rows = 4 * strategy.num_replicas_in_sync();
  const Tensor x = Tensor::ones({3 * rows, 3}), y = Tensor::zeros({3 * rows});
  DistributedDataset batches =
      strategy.distribute_dataset(Dataset::from_tensor_slices({x, y}).batch(rows));
  return warnings_of([&] {
    for (const PerReplica<Batch>& batch : batches) strategy.run(step, batch);
  });
}

TEST(RunResults, NonFiniteResultWarnsOnceWithReplicaAndStep) {
  for (const auto& strategy : {mirrored(3), mirrored(1, 3)}) {
    const auto warnings = warnings_of([&] {
      for (int step = 0; step < 4; ++step) {
        (void)strategy->run([&] { return num(step == 2 && replica_number() == 1 ? kNan : 1.0); });
      }
    });
    EXPECT_THAT(
        warnings,
        ElementsAre(StartsWith("replica 1, step 2: the step of 'mirrored' returned nan; ")));
  }
}

TEST(RunResults, WarningAttributesNanToEmptyBatch) {
  const auto strategy = mirrored(1, 3);
  // Batches have 3 + 3 + 2 rows, so replica 2 has no rows in the last step.
  const Dataset data = Dataset::from_tensor_slices({Tensor::ones({8})}).batch(3);
  DistributedDataset batches = strategy->distribute_dataset(data);
  const auto warnings = warnings_of([&] {
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (const PerReplica<Batch>& batch : batches)
        (void)strategy->run([](const Batch& rows) { return reduce_mean(rows.features()); }, batch);
    }
    // A NaN from a replica with rows still causes a warning.
    (void)strategy->run([&] { return num(replica_number() == 1 ? kNan : 1.0); });
  });
  EXPECT_THAT(warnings, ElementsAre(AllOf(StartsWith("replica 2, step 2: the step of 'mirrored' "),
                                          HasSubstr("because its batch has no rows"),
                                          ::testing::Not(HasSubstr("learning rate"))),
                                    AllOf(StartsWith("replica 1, step 6: "),
                                          HasSubstr("try a smaller learning rate"))));
}

TEST(RunResults, DefaultStrategyChecksResults) {
  // Runs in a separate process, because the default strategy, which all tests share, warns only
  // once.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto warn = [] {
    const auto warnings = warnings_of([] {
      for (const float result : {1.0f, kNan, kNan})
        (void)default_strategy().run([&] { return num(result); });
    });
    for (const std::string& line : warnings) std::cerr << line << '\n';
    std::exit(static_cast<int>(warnings.size()));
  };
  EXPECT_EXIT(warn(), ::testing::ExitedWithCode(1),
              "replica 0, step 1: the step of 'default' returned nan; ");
}

TEST(RunResults, EveryFloatingPointTypeIsChecked) {
  using Results = std::vector<std::function<void(Strategy&)>>;
  const Results results = {
      [](Strategy& s) { (void)s.run([] { return -std::numeric_limits<double>::infinity(); }); },
      [](Strategy& s) { (void)s.run([] { return -std::numeric_limits<float>::infinity(); }); },
      [](Strategy& s) {
        (void)s.run([] { return reshape(num(-INFINITY, DType::kBFloat16), {1, 1}); });
      },
  };
  for (const auto& run : results) {
    const auto strategy = mirrored(2);
    EXPECT_THAT(
        warnings_of([&] { run(*strategy); }),
        ElementsAre(AllOf(StartsWith("replica 0, 1, step 0: "), HasSubstr("returned -inf; "))));
  }
}

TEST(RunResults, FiniteOrNonScalarResultsDoNotCauseWarning) {
  const auto strategy = mirrored(2);
  EXPECT_THAT(warnings_of([&] {
                (void)strategy->run([] { return vec({1.0f, kNan}); });
                (void)strategy->run([] { return num(3, DType::kInt64); });
                (void)strategy->run([] { return Tensor(); });
                (void)strategy->run([] { return num(1e30); });
                strategy->run([] {});
              }),
              IsEmpty());
}

TEST(MeanLossWarning, IsLoggedOnceForMeanOverReplicaRows) {
  const LossOf losses[] = {
      [](const Tensor& each) { return reduce_mean(each); },
      [](const Tensor& each) { return each.mean(); },
      [](const Tensor& each) { return reduce_mean(each) + reduce_sum(each) * 0.01f; },
      [](const Tensor& each) { return -reduce_mean(-expand_dims(each, 1)); },
  };
  for (std::size_t number = 0; number < std::size(losses); ++number) {
    for (const auto& strategy : {mirrored(2), mirrored(1, 2)}) {
      SCOPED_TRACE(concat("loss ", number));
      EXPECT_THAT(warnings_of_loss(*strategy, losses[number]),
                  ElementsAre(AllOf(StartsWith("reduce_mean at replica_run_test.cc:"),
                                    HasSubstr(" in step 0 of 'mirrored': the loss is a mean over "
                                              "this replica's 4 rows, but gradients are summed "
                                              "over 2 replicas: they are 2 times those"))));
    }
  }
}

TEST(MeanLossWarning, IsNotLoggedForCorrectlyScaledLoss) {
  const auto twice = [](const Tensor& x) { return concat({x, x}, 0); };
  const LossOf losses[] = {[](const Tensor& x) { return reduce_sum(x) / 8.0; },
                           [](const Tensor& x) { return reduce_mean(x) / 2.0; },
                           [=](const Tensor& x) { return reduce_sum(reduce_mean(twice(x)) / 2.0); },
                           // A mean over concatenated rows, and a mean over rows that are stacked
                           // along a new axis.
                           [=](const Tensor& x) { return reduce_mean(twice(x)); },
                           [](const Tensor& x) {
                             return reduce_mean(stack(std::vector{x, x}), {.axes = {0}});
                           }};
  const auto strategy = mirrored(2);
  for (std::size_t number = 0; number < std::size(losses); ++number) {
    EXPECT_THAT(warnings_of_loss(*strategy, losses[number]), IsEmpty()) << "loss " << number;
  }
  // No warning: the first step averages the gradients itself, and the second has a single replica.
  const auto mean = [](const Tensor& x) { return reduce_mean(x); };
  EXPECT_THAT(warnings_of_loss(*strategy, mean, /*own_mean=*/true), IsEmpty());
  EXPECT_THAT(warnings_of_loss(*mirrored(1), mean), IsEmpty());
}

TEST(RunErrors, AreThrownWithoutLogging) {
  const auto strategy = mirrored(2);
  EXPECT_THAT(warnings_of([&] {
                EXPECT_INVALID(strategy->run([] {
                  vec({1, 2}) + vec({1, 2, 3});
                }),
                               "replica 0, step 0: add at ");
              }),
              IsEmpty());
}

}  // namespace tutti::strategy_tests::replica_run_test
