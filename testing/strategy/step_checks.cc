// Checks of whole steps: replicas that fail, random numbers, training.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <set>

#include "testing/strategy/expect.h"
#include "tutti/core/random.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/strategy/strategies.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::conformance {
namespace {

constexpr std::int64_t kRowsPerReplica = 4;
constexpr std::int64_t kSteps = 3;

void check_failures(const StrategySubject&, Strategy& strategy) {
  const auto n = static_cast<int>(strategy.replica_devices().size());
  const auto sum_of_ones = [] {
    return ReplicaContext::current().all_reduce(ReduceOp::kSum, Tensor::ones({1}));
  };
  for (const int failing : std::set<int>{0, n - 1}) {
    const std::string who = concat("replica ", failing);
    expect_error(concat("an exception in ", who, ", for which the others wait"),
                 ErrorCode::kDataLoss, {who, "the planted reason"}, [&] {
                   strategy.run([&] {
                     if (ReplicaContext::current().replica_id() == failing) {
                       fail(ErrorCode::kDataLoss, "the planted reason");
                     }
                     sum_of_ones();
                   });
                 });
    expect_equal("last_failure().replica", strategy.last_failure().replica, failing);
    expect_equal("all_reduce() in the run after a failed one", numbers(strategy.run(sum_of_ones)),
                 copies(n, static_cast<std::size_t>(n)));
  }
}

PerReplica<RandomContext> random_contexts(Strategy& strategy) {
  return strategy.run([] { return current_random_context(); });
}

void check_random_numbers(const StrategySubject&, Strategy& strategy) {
  const auto first = random_contexts(strategy);
  const Json state = strategy.save_state();
  const auto second = random_contexts(strategy);
  strategy.restore_state(state);
  const auto repeated = random_contexts(strategy);
  for (std::size_t r = 0; r < first.size(); ++r) {
    const std::string who = concat("replica ", r, ": current_random_context().");
    expect_equal(who + "replica", first[r].replica, r);
    expect_equal(who + "step of the next run", second[r].step, first[r].step + 1);
    expect_equal(who + "step after restore_state()", repeated[r].step, second[r].step);
    expect(repeated[r].seed == second[r].seed,
           who + "seed: expected the same after restore_state()");
  }
}

struct Trained {
  Numbers weights, losses;
};

/// A line with momentum; the same numbers, however it is trained.
struct Problem {
  explicit Problem(std::int64_t num_rows)
      : x(random_normal({num_rows, 5}, RandomKey{5, kUserPurpose, 1, 0, 0})),
        y(random_normal({num_rows, 1}, RandomKey{5, kUserPurpose, 2, 0, 0})),
        w(random_normal({5, 1}, RandomKey{5, kUserPurpose, 3, 0, 0}), {.name = "w"}),
        b(Tensor::zeros({1}), {.name = "b"}),
        optimizer(std::vector<Variable>{w, b}, {.learning_rate = 0.1, .momentum = 0.9}) {}

  Tensor loss(const Tensor& features, const Tensor& labels, std::int64_t global_rows) const {
    const Tensor error = matmul(features, w.value()) + b.value() - labels;
    return reduce_sum(square(error)) / static_cast<float>(global_rows);
  }
  Trained trained(Numbers losses) const {
    Numbers weights = numbers(w.value());
    weights.push_back(b.value().item_double());
    return {weights, std::move(losses)};
  }

  Tensor x, y;
  Variable w, b;
  Sgd optimizer;
};

Trained train(Strategy& strategy) {
  const std::int64_t rows = kRowsPerReplica * strategy.num_replicas_in_sync();
  const auto scope = strategy.scope();
  Problem problem(kSteps * rows);
  Numbers losses;
  DistributedDataset dataset =
      strategy.distribute_dataset(Dataset::from_tensor_slices({problem.x, problem.y}).batch(rows));
  for (const PerReplica<Batch>& step : dataset) {
    const auto loss = strategy.run(
        [&](const Batch& batch) {
          GradientTape tape;
          const Tensor own = problem.loss(batch.features(), batch.labels(), batch.global_rows());
          problem.optimizer.minimize(tape, own);
          return own;
        },
        step);
    losses.push_back(strategy.reduce(ReduceOp::kSum, loss).item_double());
  }
  for (const Variable& each : {problem.w, problem.b}) {
    const Numbers first = numbers(each.storage().local_components().front());
    for (const Tensor& component : each.storage().local_components()) {
      expect_equal(concat("training: components of '", each.name(), "', all as the first"),
                   numbers(component), first);
    }
  }
  return problem.trained(losses);
}

/// Neighbour 2i + 1 is added to 2i; an odd last one goes up as it is.
Tensor sum_along_tree(std::vector<Tensor> values) {
  while (values.size() > 1) {
    std::vector<Tensor> sums;
    for (std::size_t i = 0; i + 1 < values.size(); i += 2) {
      sums.push_back(values[i] + values[i + 1]);
    }
    if (values.size() % 2 == 1) sums.push_back(values.back());
    values = std::move(sums);
  }
  return values.front();
}

/// The same on one device, which adds the gradients of `n` replicas.
Trained train_on_one_device(Device device, std::int64_t n) {
  OneDeviceStrategy strategy(concat(device));
  const auto scope = strategy.scope();
  Problem problem(kSteps * n * kRowsPerReplica);
  const std::vector<Variable> variables = {problem.w, problem.b};
  Numbers losses;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const auto loss = strategy.run([&] {
      std::vector<std::vector<Tensor>> gradients(variables.size());
      std::vector<Tensor> own;
      for (std::int64_t r = 0; r < n; ++r) {
        const std::int64_t first = (step * n + r) * kRowsPerReplica;
        const auto rows = [&](const Tensor& all) {
          return all.detached_rows(first, kRowsPerReplica).to(device);
        };
        GradientTape tape;
        own.push_back(problem.loss(rows(problem.x), rows(problem.y), n * kRowsPerReplica));
        const std::vector<Gradient> each = tape.gradient(own.back(), variables);
        for (std::size_t i = 0; i < each.size(); ++i) gradients[i].push_back(each[i].dense());
      }
      std::vector<Gradient> sums;
      for (const auto& each : gradients) sums.emplace_back(sum_along_tree(each));
      problem.optimizer.apply_gradients(sums, {.aggregation = GradientAggregation::kNone});
      return sum_along_tree(own);
    });
    losses.push_back(loss[0].item_double());
  }
  return problem.trained(losses);
}

void expect_near(std::string_view what, const Numbers& got, const Numbers& expected) {
  bool is_near = got.size() == expected.size();
  for (std::size_t i = 0; is_near && i < got.size(); ++i) {
    is_near = std::abs(got[i] - expected[i]) <= 1e-4 * (1 + std::abs(expected[i]));
  }
  if (!is_near) expect_equal(what, got, expected);
}

void check_training(const StrategySubject& subject, Strategy& strategy) {
  const Trained got = train(strategy);
  const Trained expected =
      train_on_one_device(strategy.replica_devices().front(), strategy.num_replicas_in_sync());
  const std::string on_one = " after training, beside one device";
  expect_near("weights" + on_one, got.weights, expected.weights);
  expect_near("losses" + on_one, got.losses, expected.losses);
  if (!subject.is_canonical) return;
  expect_equal("bits of the weights" + on_one, got.weights, expected.weights);
  expect_equal("bits of the losses" + on_one, got.losses, expected.losses);
  const std::unique_ptr<Strategy> other = subject.make();
  expect_equal("bits of the weights of a second training", train(*other).weights, got.weights);
}

}  // namespace

std::vector<StrategyCheck> step_checks() {
  return {{"failures", check_failures},
          {"random_numbers", check_random_numbers},
          {"training", check_training}};
}

}  // namespace tutti::conformance
