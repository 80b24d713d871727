// Tests the warnings of run(), each logged once: non-finite results, losses that are means over a
// replica's rows. Conditions that run() throws for are not logged as well.
// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <iostream>
#include <limits>

#include "tests/strategy/strategy_helpers.h"
#include "tests/support/warnings.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/optimizer/sgd.h"

namespace tutti::strategy_tests {
namespace run_warnings_test {

using thrown::warnings_of;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Returns the warnings of three steps in which the replicas minimize `loss` of their 4 rows.
using LossOf = std::function<Tensor(const Tensor& per_example)>;
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

}  // namespace run_warnings_test

using run_warnings_test::kNan;
using run_warnings_test::warnings_of;
using run_warnings_test::warnings_of_loss;

TEST(RunResults, OneThatIsNotFiniteIsNamedOnceWithReplicaAndStep) {
  for (const auto& strategy : {mirrored(3), mirrored(1, 3)}) {
    const auto warnings = warnings_of([&] {
      for (int step = 0; step < 4; ++step) {
        (void)strategy->run([&] { return num(step == 2 && replica_number() == 1 ? kNan : 1.0); });
      }
    });
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_THAT(warnings[0],
                ::testing::StartsWith("replica 1, step 2: the step of 'mirrored' returned nan; "));
  }
}

TEST(RunResults, MeanOverABatchWithoutRowsIsNamedAsTheCause) {
  const auto strategy = mirrored(1, 3);
  // Batches give 3 + 3 + 2 rows: replica 2 has none in the last step.
  const Dataset data = Dataset::from_tensor_slices({Tensor::ones({8})}).batch(3);
  DistributedDataset batches = strategy->distribute_dataset(data);
  const auto warnings = warnings_of([&] {
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (const PerReplica<Batch>& batch : batches)
        (void)strategy->run([](const Batch& rows) { return reduce_mean(rows.features()); }, batch);
    }
    // A genuine NaN still causes a warning.
    (void)strategy->run([&] { return num(replica_number() == 1 ? kNan : 1.0); });
  });
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_THAT(warnings[0], ::testing::StartsWith("replica 2, step 2: the step of 'mirrored' "));
  EXPECT_THAT(warnings[0], ::testing::HasSubstr("because its batch has no rows"));
  EXPECT_THAT(warnings[0], ::testing::Not(::testing::HasSubstr("learning rate")));
  EXPECT_THAT(warnings[1], ::testing::StartsWith("replica 1, step 6: "));
  EXPECT_THAT(warnings[1], ::testing::HasSubstr("try a smaller learning rate"));
}

TEST(RunResults, OfTheDefaultStrategyAreLookedAtToo) {
  // Runs in a process of its own, because all tests share the default strategy, which warns once.
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

TEST(RunResults, NumbersOfEveryFloatingTypeAreLookedAt) {
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
    const auto warnings = warnings_of([&] { run(*strategy); });
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_THAT(warnings[0], ::testing::StartsWith("replica 0, 1, step 0: "));
    EXPECT_THAT(warnings[0], ::testing::HasSubstr("returned -inf; "));
  }
}

TEST(RunResults, OthersAreNot) {
  const auto strategy = mirrored(2);
  EXPECT_THAT(warnings_of([&] {
                (void)strategy->run([] { return vec({1.0f, kNan}); });
                (void)strategy->run([] { return num(3, DType::kInt64); });
                (void)strategy->run([] { return Tensor(); });
                (void)strategy->run([] { return num(1e30); });
                strategy->run([] {});
              }),
              ::testing::IsEmpty());
}

TEST(RunMeans, ALossThatIsAMeanOverTheReplicasRowsIsWarnedOfOnce) {
  using run_warnings_test::LossOf;
  const LossOf losses[] = {
      [](const Tensor& each) { return reduce_mean(each); },
      [](const Tensor& each) { return each.mean(); },
      [](const Tensor& each) { return reduce_mean(each) + reduce_sum(each) * 0.01f; },
      [](const Tensor& each) { return -reduce_mean(-expand_dims(each, 1)); },
  };
  for (std::size_t number = 0; number < std::size(losses); ++number) {
    for (const auto& strategy : {mirrored(2), mirrored(1, 2)}) {
      SCOPED_TRACE(concat("loss ", number));
      const auto warnings = warnings_of_loss(*strategy, losses[number]);
      ASSERT_EQ(warnings.size(), 1u);
      EXPECT_THAT(warnings[0], ::testing::StartsWith("reduce_mean at run_warnings_test.cc:"));
      EXPECT_THAT(warnings[0],
                  ::testing::HasSubstr(" in step 0 of 'mirrored': the loss is a mean over this "
                                       "replica's 4 rows, but gradients are summed over 2 "
                                       "replicas: they are 2 times those"));
    }
  }
}

TEST(RunMeans, LossesThatAddUpToTheMeanAreNot) {
  const auto twice = [](const Tensor& x) { return concat({x, x}, 0); };
  const run_warnings_test::LossOf losses[] = {
      [](const Tensor& x) { return reduce_sum(x) / 8.0; },
      [](const Tensor& x) { return reduce_mean(x) / 2.0; },
      [=](const Tensor& x) { return reduce_sum(reduce_mean(twice(x)) / 2.0); },
      // Means that are not over rows, or over rows along another axis.
      [=](const Tensor& x) { return reduce_mean(twice(x)); },
      [](const Tensor& x) {
        return reduce_mean(stack(std::vector{x, x}), {.axes = {0}});
      }};
  const auto strategy = mirrored(2);
  for (std::size_t number = 0; number < std::size(losses); ++number) {
    EXPECT_THAT(warnings_of_loss(*strategy, losses[number]), ::testing::IsEmpty())
        << "loss " << number;
  }
  // Averaged instead of summed gradients, and a single replica.
  const auto mean = [](const Tensor& x) { return reduce_mean(x); };
  EXPECT_THAT(warnings_of_loss(*strategy, mean, /*own_mean=*/true), ::testing::IsEmpty());
  EXPECT_THAT(warnings_of_loss(*mirrored(1), mean), ::testing::IsEmpty());
}

TEST(RunErrors, AreThrownAndNotLoggedAsWell) {
  const auto strategy = mirrored(2);
  EXPECT_THAT(warnings_of([&] {
                EXPECT_INVALID(strategy->run([] {
                  vec({1, 2}) + vec({1, 2, 3});
                }),
                               "replica 0, step 0: add at ");
              }),
              ::testing::IsEmpty());
}

}  // namespace tutti::strategy_tests
