// Tests gradients of several workers that are sent in 16 bits.
// SPDX-License-Identifier: Apache-2.0
#include "tests/strategy/worker_threads.h"
#include "tutti/core/random.h"
#include "tutti/optimizer/gradient_reducer.h"
#include "tutti/optimizer/sgd.h"

namespace tutti::strategy_tests {
namespace {
LocalStrategyOptions compressed_on_cpus(int replicas, WireCompression compression) {
  LocalStrategyOptions options = on_cpus(replicas);
  options.cross_device_ops.options.compression = compression;
  return options;
}

/// Returns the sums of three steps in which each replica gives the same gradient: rounding errors
/// are carried over. The gradients exceed a block of elements.
std::vector<double> sums_of_three_steps(Strategy& strategy) {
  const auto scope = strategy.scope();
  const std::vector<Variable> variables{Variable(Tensor::zeros({9'001}), {.name = "w"})};
  std::vector<double> all;
  for (int step = 0; step < 3; ++step) {
    const auto sums = strategy.run([&] {
      const auto r = static_cast<std::uint64_t>(ReplicaContext::current().replica_id());
      return reduced_gradients(variables,
                               [&](std::size_t) {
                                 return random_normal({9'001}, RandomKey{5, kUserPurpose, r, 0, 0});
                               })[0]
          .dense();
    });
    for (const double each : numbers(sums[0])) all.push_back(each);
  }
  return all;
}

TEST(CompressedWorkers, CompressedGradientsHaveTheBitsOfOneProcess) {
  for (const auto compression : {WireCompression::kBFloat16, WireCompression::kFloat16}) {
    for (const std::vector<int>& replicas :
         {std::vector{1, 1}, {2, 2}, {1, 2}, {1, 1, 1}, {2, 1, 2}}) {
      int total = 0;
      std::vector<LocalStrategyOptions> options;
      for (const int count : replicas) {
        total += count;
        options.push_back(compressed_on_cpus(count, compression));
      }
      MirroredStrategy one_process(compressed_on_cpus(total, compression));
      const std::vector<double> expected = sums_of_three_steps(one_process);
      EXPECT_NE(expected, sums_of_three_steps(*mirrored(1, total)));  // compression rounds
      for (const Between between : {Between::kMemory, Between::kMessages}) {
        EXPECT_THAT(results_of_workers(options, sums_of_three_steps, between),
                    ::testing::Each(expected))
            << join(replicas);
      }
    }
  }
}

/// Returns how many bytes worker 0 sends in three steps.
std::uint64_t bytes_of_three_steps(WireCompression compression) {
  auto transports = in_process_transports(2, false);
  const std::shared_ptr<Transport> first = transports[0];
  expect_no_error(errors_of_ranks(2, [&](int worker) {
    MultiWorkerMirroredStrategy strategy(
        make_communicator(transports[static_cast<std::size_t>(worker)]),
        compressed_on_cpus(1, compression));
    sums_of_three_steps(strategy);
  }));
  return first->stats().bytes_sent;
}

TEST(CompressedWorkers, CompressionSendsAQuarterLessWithOneReplicaPerWorker) {
  const auto plain = static_cast<double>(bytes_of_three_steps(WireCompression::kNone));
  const auto shorter = static_cast<double>(bytes_of_three_steps(WireCompression::kBFloat16));
  EXPECT_LT(shorter, 0.8 * plain);
  EXPECT_GT(shorter, 0.6 * plain);
}

TEST(CompressedWorkers, CompressionOfWhatCannotStayIn16BitsIsRefused) {
  const std::vector<LocalStrategyOptions> options(
      2, compressed_on_cpus(1, WireCompression::kBFloat16));
  for (const std::string& error :
       run_workers(options, [](auto&) {}, Between::kMessages, {.algorithm = "ring"})) {
    EXPECT_THAT(error, ::testing::HasSubstr("compression bfloat16 with 'ring'"));
  }
  const auto mixed = run_workers(
      options,
      [](MultiWorkerMirroredStrategy& strategy) {
        const auto scope = strategy.scope();
        Variable w(Tensor::zeros({2, 1}), {.name = "w"});
        Sgd sgd(std::vector<Variable>{w}, {.learning_rate = 1.0});
        strategy.run([&] {
          Gradient gradient(Tensor::from<float>({2, 1}, {1, 1}));
          if (strategy.worker() == 0) {
            gradient = IndexedSlices{Tensor::from<float>({1, 1}, {5}),
                                     Tensor::from<std::int64_t>({1}, {1}), Shape{2, 1}};
          }
          sgd.apply_gradients(std::vector<Gradient>{gradient});
        });
      },
      Between::kMessages);
  for (const std::string& error : mixed) {
    EXPECT_THAT(error, ::testing::HasSubstr("Variable 'w' has slices on some replicas"));
  }
}

}  // namespace
}  // namespace tutti::strategy_tests
