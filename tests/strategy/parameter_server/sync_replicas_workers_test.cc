// Workers whose gradients are added up: MirroredStrategy's bits, backups, and steps that too few
// are left for.
// SPDX-License-Identifier: Apache-2.0
#include <atomic>

#include "tests/strategy/parameter_server/workers_apart.h"
#include "tutti/autograd/embedding_lookup.h"
#include "tutti/core/random.h"
#include "tutti/optimizer/adam.h"

namespace tutti::sync_replicas_workers_tests {
namespace {

using strategy_tests::expect_no_error;
using ::testing::AllOf;
using ::testing::HasSubstr;
using workers_apart::Countdown;
using workers_apart::Gathering;
using workers_apart::make_servers;
using workers_apart::options_of;
using workers_apart::run_apart;
using workers_apart::Services;
using workers_apart::statistics_of;
using workers_apart::wait_for;

struct Bits {
  std::string weights, slots;
};

/// Dense and sparse gradients, dropout, Adam; a global batch of 12 rows over all replicas.
Bits train_bits(Strategy& strategy, int steps = 4) {
  set_random_seed(7);
  Json state = strategy.save_state();
  state.set("step", 0).set("seed", "7");
  strategy.restore_state(state);
  const auto scope = strategy.scope();
  const auto weight = [](const char* name, const Shape& shape, std::uint64_t number) {
    const Tensor initial = random_normal(shape, RandomKey{7, kInitializerPurpose, number, 0, 0});
    return Variable(initial, {.name = name});
  };
  const std::vector<Variable> weights = {weight("table", {10, 6}, 1), weight("w1", {6, 33}, 2),
                                         weight("b1", {33}, 3), weight("w2", {33, 1}, 4)};
  Adam optimizer(weights, {.learning_rate = 0.05});
  for (int step = 0; step < steps; ++step) {
    strategy.run([&, step] {
      const ReplicaContext& context = ReplicaContext::current();
      const std::int64_t rows = 12 / context.num_replicas_in_sync();
      std::vector<std::int64_t> words;
      for (std::int64_t i = 0; i < rows; ++i) {
        words.push_back((step + context.replica_id() * rows + i) * 7 % 10);
      }
      GradientTape tape;
      const Tensor x = embedding_lookup(weights[0], Tensor::from<std::int64_t>({rows}, words));
      const Tensor hidden = relu(matmul(x, weights[1].value()) + weights[2].value());
      const RandomContext& random = current_random_context();
      const Tensor dropped = dropout(
          hidden, 0.25, RandomKey{random.seed, kDropoutPurpose, random.step, random.replica, 0});
      optimizer.minimize(tape,
                         reduce_sum(square(matmul(dropped, weights[3].value()) - 1.0f)) / 12.0f);
    });
  }
  std::string weights_hash = hash_variables(weights);
  return {std::move(weights_hash), hash_variables(optimizer.state_variables())};
}

void expect_bits_of_mirrored(int num_workers, int replicas, int num_servers, int num_shards) {
  const std::string what = concat(num_workers, " workers of ", replicas, " replicas");
  const testing::HangWatchdog watchdog(what, std::chrono::seconds(60));
  const Bits expected = train_bits(*strategy_tests::mirrored(1, num_workers * replicas));
  ParameterServerOptions options = options_of(UpdateMode::kSyncReplicas, replicas);
  options.variable_partitioner = FixedShardsPartitioner(num_shards);
  std::vector<Bits> trained(static_cast<std::size_t>(num_workers));
  const Services servers = make_servers(num_servers);
  expect_no_error(run_apart(num_workers, servers, options, [&](ParameterServerStrategy& strategy) {
    EXPECT_EQ(strategy.num_replicas_in_sync(), num_workers * replicas);
    trained[static_cast<std::size_t>(strategy.worker())] = train_bits(strategy);
  }));
  for (const Bits& each : trained) {
    EXPECT_EQ(each.weights, expected.weights) << what;
    EXPECT_EQ(each.slots, expected.slots) << what;
  }
  EXPECT_EQ(statistics_of(servers).num_stale_dropped, 0u);
}

TEST(UpdateModes, SyncReplicasOfAllWorkersHasTheBitsOfMirroredStrategy) {
  expect_bits_of_mirrored(1, 1, 1, 1);
  expect_bits_of_mirrored(2, 1, 1, 1);
  expect_bits_of_mirrored(3, 1, 2, 2);
  expect_bits_of_mirrored(2, 2, 2, 1);
}

TEST(UpdateModes, AWorkerAloneHasTheBitsOfOneDeviceInEveryMode) {
  const testing::HangWatchdog watchdog("modes in one process");
  const Bits expected = train_bits(*strategy_tests::mirrored(1));
  for (const UpdateMode mode : {UpdateMode::kAsync, UpdateMode::kSyncReplicas}) {
    ParameterServerStrategy strategy(options_of(mode));
    EXPECT_EQ(strategy.update_mode(), mode);
    const Bits bits = train_bits(strategy);
    EXPECT_EQ(bits.weights, expected.weights) << to_string(mode);
    EXPECT_EQ(bits.slots, expected.slots) << to_string(mode);
  }
}

/// Two of three make a step; the third has read before three steps were made, and is late for all.
TEST(UpdateModes, GradientsOfALateBackupWorkerAreDroppedAndCounted) {
  const testing::HangWatchdog watchdog("backup workers");
  ParameterServerOptions options = options_of(UpdateMode::kSyncReplicas);
  options.replicas_to_aggregate = 2;
  options.total_num_replicas = 3;
  const Services servers = make_servers(2);
  Gathering gathering(3);
  std::atomic<int> made[3] = {};
  const auto errors = run_apart(3, servers, options, [&](ParameterServerStrategy& strategy) {
    const auto scope = strategy.scope();
    Countdown countdown;
    const int worker = strategy.worker();
    if (worker < 2) {
      for (int i = 0; i < 3; ++i) {
        countdown.step(strategy, [&] {
          if (i == 0) gathering.meet();
        });
        ++made[worker];
      }
    } else {
      countdown.step(strategy, [&] {
        gathering.meet();
        wait_for(made[0], 3), wait_for(made[1], 3);
      });
      // Its next one counts again: with worker 0's it makes the fourth step.
      EXPECT_EQ(countdown.step(strategy), 9);
      ++made[worker];
    }
    if (worker != 0) return;
    countdown.step(strategy);
    EXPECT_EQ(countdown.optimizer.iterations().value().item_int(), 4);
    // Each step is the mean of two, for three: -1 * 2 / (2/3).
    EXPECT_EQ(countdown.count(), 12);
  });
  expect_no_error(errors);
  const auto told = statistics_of(servers);
  EXPECT_EQ(told.num_stale_dropped, 2u);  // of w and of the iterations
  EXPECT_EQ(told.num_sync_steps, 8u);     // four of each
}

/// Two of three make a step. Each counts its own steps; when two have ended, the third has a step
/// left that nobody else gives for: tf's token queue says OutOfRange then.
TEST(UpdateModes, ReadOfAnUnreachableStepFailsAtOnce) {
  const testing::HangWatchdog watchdog("the last worker");
  ParameterServerOptions options = options_of(UpdateMode::kSyncReplicas);
  options.replicas_to_aggregate = 2;
  const Services servers = make_servers(2);
  Gathering gathering(3);
  std::atomic<int> num_ended = 0;
  const auto errors = errors_of_ranks(3, [&](int worker) {
    {
      ParameterServerStrategy strategy(worker, 3, servers, options);
      const auto scope = strategy.scope();
      Countdown countdown;
      for (int i = 0; i < 4; ++i) {
        countdown.step(strategy, [&] {
          if (i == 0) gathering.meet();
          if (i == 0 && worker == 2) wait_for(num_ended, 2);
        });
      }
    }
    ++num_ended;
  });
  EXPECT_EQ(errors[0], "");
  EXPECT_EQ(errors[1], "");
  // Worker 2's first gradient came late; its second one is of step 4, alone.
  EXPECT_THAT(errors[2], AllOf(HasSubstr("step 4 will not be made: workers 0, 1 have ended"),
                               HasSubstr("expected gradients of 2 of 3 workers, got 1 at most")));
  EXPECT_EQ(statistics_of(servers).num_sync_steps, 8u);  // four of w and of the iterations
}

/// The same for one that waits already when the other ends.
TEST(UpdateModes, PendingReadFailsWhenTooFewWorkersAreLeft) {
  const testing::HangWatchdog watchdog("a waiting worker");
  const Services servers = make_servers(1);
  Gathering gathering(2);
  Event gave;
  const auto errors =
      run_apart(2, servers, options_of(UpdateMode::kSyncReplicas), [&](Strategy& strategy) {
        const auto scope = strategy.scope();
        Countdown countdown;
        const bool ends = strategy.worker() == 1;
        countdown.step(strategy, [&] { gathering.meet(); });
        if (ends) return (void)gave.wait_until(TimePoint::max());
        countdown.step(strategy, [&] { gave.set(); });
        countdown.step(strategy);
      });
  EXPECT_THAT(errors[0], HasSubstr("step 1 will not be made: worker 1 has ended"));
  EXPECT_EQ(errors[1], "");
}

TEST(UpdateModes, AReadThatWaitsTooLongNamesTheWorker) {
  const testing::HangWatchdog watchdog("a stalled worker");
  ParameterServerOptions options = options_of(UpdateMode::kSyncReplicas);
  options.timeout = options.local.timeout = std::chrono::seconds(2);
  Gathering gathering(2);
  Event has_failed;
  const auto errors =
      run_apart(2, make_servers(1), options, [&](ParameterServerStrategy& strategy) {
        const auto scope = strategy.scope();
        Countdown countdown;
        const bool is_slow = strategy.worker() == 1;
        countdown.step(strategy, [&] {
          gathering.meet();
          if (is_slow) (void)has_failed.wait_until(TimePoint::max());
        });
        if (is_slow) return;
        struct SetOnExit {
          Event& event;
          ~SetOnExit() { event.set(); }
        } const set_on_exit{has_failed};
        countdown.step(strategy);
      });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("worker 0 waits to read the next step"),
                               HasSubstr("for which worker 1 gave no gradient"),
                               HasSubstr("gradients of 2 of 2 workers")));
  EXPECT_EQ(errors[1], "");
}

}  // namespace
}  // namespace tutti::sync_replicas_workers_tests
