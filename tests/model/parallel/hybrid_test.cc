// Convolutions by data, dense layers by model: Krizhevsky's "one weird trick", its schemes, and the
// bytes that each moves.
// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "tests/model/parallel/parallel_helpers.h"
#include "tutti/model/parallel/parallel_dense.h"
#include "tutti/model/parallel/parts.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/dispatch.h"

namespace tutti {
namespace {
namespace hybrid_test {

using namespace parallel_tests;

constexpr std::int64_t kWorkers = 8, kRows = 16;  // of each worker, in a step
constexpr std::int64_t kFeatures = 2 * 4 * 4, kHidden = 256, kClasses = 4;
constexpr double kRate = 0.5;

enum class Scheme {
  kAssembled,  // (a): the features of all on one device, then the dense layers, once
  kOneByOne,   // (b): a round for the examples of each worker
  kInTurns,    // (c): in each round some examples of every worker
};

Tensor pictures() { return noise({kWorkers * kRows, 6, 6, 1}, 31); }
Tensor classes() {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < kWorkers * kRows; ++i) values.push_back((i * i + i / 3) % kClasses);
  return Tensor::from<std::int64_t>({kWorkers * kRows}, values);
}

Sequential convolutions() {
  return Sequential(Input{{6, 6, 1}}, Conv2D(2, 3, {.activation = "tanh"}), Flatten());
}

using Values = std::vector<Tensor>;

/// Where they are.
void add(Values& sums, const Values& values) {
  const NoDeviceScope scope;
  for (std::size_t i = 0; i < values.size(); ++i) {
    sums.size() > i ? void(sums[i] = sums[i] + values[i]) : sums.push_back(values[i]);
  }
}
Values dense_of(const std::vector<Gradient>& gradients) {
  Values values;
  for (const Gradient& each : gradients) values.push_back(each.dense());
  return values;
}
void subtract(const std::vector<Variable>& variables, const Values& gradients) {
  Sgd optimizer(variables, {.learning_rate = kRate});
  optimizer.apply_gradients(std::vector<Gradient>(gradients.begin(), gradients.end()));
}

/// A copy of the convolutions on each device, and dense layers of which each device has a part.
class Hybrid {
 public:
  Hybrid() {
    for (int i = 0; i < kWorkers; ++i) {
      set_random_seed(9);
      const DeviceScope scope(on_cpu(i));
      copies_.push_back(std::make_unique<Sequential>(convolutions()));
      if (i > 0) continue;
      const NoDeviceScope none;
      head_ = std::make_unique<ParallelDensePair>(
          kHidden, kClasses, ParallelDenseOptions{.devices = "cpu:0-7", .activation = "relu"});
      head_->build_for({kFeatures});
    }
    for (int i = 0; i < kWorkers; ++i) {
      x_.push_back(pictures().detached_rows(i * kRows, kRows).to(on_cpu(i)));
      y_.push_back(classes().detached_rows(i * kRows, kRows).to(on_cpu(i)));
    }
  }

  struct Result {
    Values of_convolutions, of_head;
    std::size_t bytes = 0;  // of features, results and their gradients
    int num_updates = 0;    // of the dense layers
  };
  /// `updates_in_rounds`: the dense layers change after each of the rounds, (N, N / K) of the
  /// paper.
  Result step(Scheme scheme, bool updates_in_rounds = false) {
    Result result;
    TransferLog log;
    std::vector<Values> by_worker(static_cast<std::size_t>(kWorkers));
    const std::int64_t num_rounds = scheme == Scheme::kAssembled ? 1 : kWorkers;
    for (std::int64_t round = 0; round < num_rounds; ++round) {
      Values of_round;
      if (scheme == Scheme::kAssembled) {
        assembled(by_worker, of_round);
      } else if (scheme == Scheme::kOneByOne) {
        rows_of(round, 0, kRows, by_worker, of_round);
      } else {
        const std::int64_t count = kRows / kWorkers;
        for (int i = 0; i < kWorkers; ++i) rows_of(i, round * count, count, by_worker, of_round);
      }
      if (updates_in_rounds) {
        subtract(head_->variables(), of_round);
        ++result.num_updates;
      }
      add(result.of_head, of_round);
    }
    result.bytes = log.bytes();
    add_copies(by_worker, result.of_convolutions);
    return result;
  }
  const ParallelDensePair& head() const { return *head_; }

 private:
  Tensor loss_of(const Tensor& y, const Tensor& features) const {
    return compute_average_loss(cross_entropy(y, softmax((*head_)(features))), kWorkers * kRows);
  }

  /// Some rows of one worker.
  void rows_of(std::int64_t worker, std::int64_t first, std::int64_t count,
               std::vector<Values>& by_worker, Values& of_round) {
    const auto i = static_cast<std::size_t>(worker);
    const DeviceScope scope(on_cpu(static_cast<int>(worker)));
    std::vector<Variable> variables = copies_[i]->trainable_variables();
    const std::size_t num_own = variables.size();
    for (const Variable& each : head_->variables()) variables.push_back(each);
    GradientTape tape;
    const Tensor features = (*copies_[i])(x_[i].detached_rows(first, count));
    const Values gradients =
        dense_of(tape.gradient(loss_of(y_[i].detached_rows(first, count), features), variables));
    const auto border = gradients.begin() + static_cast<std::ptrdiff_t>(num_own);
    add(by_worker[i], {gradients.begin(), border});
    add(of_round, {border, gradients.end()});
  }

  void assembled(std::vector<Values>& by_worker, Values& of_round) {
    std::vector<Variable> variables = head_->variables();
    GradientTape tape;
    Values features, labels;
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      const DeviceScope scope(on_cpu(static_cast<int>(i)));
      features.push_back((*copies_[i])(x_[i]));
      for (const Variable& each : copies_[i]->trainable_variables()) variables.push_back(each);
    }
    const DeviceScope scope(on_cpu(0));
    const Values gradients =
        dense_of(tape.gradient(loss_of(classes(), concat(features, 0)), variables));
    const std::size_t num_head = head_->variables().size();
    of_round.assign(gradients.begin(), gradients.begin() + static_cast<std::ptrdiff_t>(num_head));
    for (std::size_t i = num_head; i < gradients.size(); ++i) {
      by_worker[(i - num_head) / copies_[0]->variables().size()].push_back(gradients[i]);
    }
  }

  /// What data parallelism does with gradients, here of the convolutions alone.
  static void add_copies(const std::vector<Values>& by_worker, Values& sums) {
    for (std::size_t k = 0; k < by_worker[0].size(); ++k) {
      Values parts;
      for (const Values& each : by_worker) parts.push_back(each[k]);
      sums.push_back(internal::canonical_sum(parts, on_cpu(0)));
    }
  }

  std::vector<std::unique_ptr<Sequential>> copies_;
  std::unique_ptr<ParallelDensePair> head_;
  Values x_, y_;
};

/// The same network on one device.
struct Whole {
  Whole() {
    set_random_seed(9);
    below = std::make_unique<Sequential>(convolutions());
    head = std::make_unique<Sequential>(Input{{kFeatures}}, Dense(kHidden, {.activation = "relu"}),
                                        Dense(kClasses));
  }
  /// Gradients of the loss of these rows, of a mean over all: convolutions, then the head.
  Values gradients(std::int64_t first, std::int64_t count) const {
    std::vector<Variable> variables = below->trainable_variables();
    for (const Variable& each : head->trainable_variables()) variables.push_back(each);
    GradientTape tape;
    const Tensor predictions = softmax((*head)((*below)(pictures().detached_rows(first, count))));
    const Tensor loss = compute_average_loss(
        cross_entropy(classes().detached_rows(first, count), predictions), kWorkers * kRows);
    return dense_of(tape.gradient(loss, variables));
  }
  std::unique_ptr<Sequential> below, head;
};

void expect_close(const Tensor& actual, const Tensor& expected) {
  testing::expect_tensor(actual.to(on_cpu(0)), expected.shape(), expected.to_doubles(), 1e-6);
}

/// Of the pair of dense layers: the parts put together as one device has them.
Values whole_head(const Values& parts) {
  const auto joined = [&](std::size_t first, int axis) {
    Values pieces;
    for (std::size_t i = first; i < first + kWorkers; ++i) pieces.push_back(parts[i].to(on_cpu(0)));
    return concat(pieces, axis);
  };
  return {joined(0, 1), joined(kWorkers, 0), joined(2 * kWorkers, 0), parts[3 * kWorkers]};
}

/// Features go to the other devices, results come back; the same for gradients. The other
/// devices get the last bias from the first.
std::size_t bytes_of(Scheme scheme) {
  const std::int64_t all = kWorkers * kRows, others = kWorkers - 1;
  std::int64_t elements = others * all * (kFeatures + kClasses);
  if (scheme == Scheme::kAssembled) elements += others * kRows * kFeatures;
  if (scheme == Scheme::kOneByOne) elements += others * kClasses;
  if (scheme == Scheme::kInTurns) elements += others * kClasses * kWorkers;
  return static_cast<std::size_t>(2 * 4 * elements);
}

/// What data parallelism moves for the dense layers: gradients to one device, and sums back.
std::size_t bytes_of_data_parallelism() {
  const std::int64_t weights = (kFeatures + 1) * kHidden + (kHidden + 1) * kClasses;
  return static_cast<std::size_t>(2 * 4 * (kWorkers - 1) * weights);
}

TEST(HybridParallelism, S3_28_GradientsAreThoseOfOneDeviceAndBytesThoseOfTheFormula) {
  const testing::HangWatchdog watchdog("hybrid parallelism", std::chrono::seconds(100));
  const Values expected = Whole().gradients(0, kWorkers * kRows);
  ASSERT_EQ(expected.size(), 6u);
  for (const Scheme scheme : {Scheme::kAssembled, Scheme::kOneByOne, Scheme::kInTurns}) {
    SCOPED_TRACE(static_cast<int>(scheme));
    const Hybrid::Result result = Hybrid().step(scheme);
    ASSERT_EQ(result.of_convolutions.size(), 2u);
    for (std::size_t i = 0; i < 2; ++i) expect_close(result.of_convolutions[i], expected[i]);
    const Values head = whole_head(result.of_head);
    for (std::size_t i = 0; i < 4; ++i) expect_close(head[i], expected[2 + i]);
    EXPECT_EQ(result.bytes, bytes_of(scheme));
    EXPECT_LT(result.bytes, bytes_of_data_parallelism());
  }
}

// A batch of 8 N for the convolutions, of N for the dense layers.
TEST(HybridParallelism, S3_28_TheDenseLayersMayChangeInEachRound) {
  const testing::HangWatchdog watchdog("hybrid parallelism", std::chrono::seconds(100));
  const Whole one;
  Values of_convolutions;
  for (int round = 0; round < kWorkers; ++round) {
    const Values gradients = one.gradients(round * kRows, kRows);
    add(of_convolutions, {gradients[0], gradients[1]});
    subtract(one.head->trainable_variables(), {gradients.begin() + 2, gradients.end()});
  }
  Hybrid hybrid;
  const Hybrid::Result result = hybrid.step(Scheme::kOneByOne, /*updates_in_rounds=*/true);
  EXPECT_EQ(result.num_updates, kWorkers);
  EXPECT_EQ(result.bytes, bytes_of(Scheme::kOneByOne));
  for (std::size_t i = 0; i < 2; ++i) expect_close(result.of_convolutions[i], of_convolutions[i]);
  const Values head = whole_head(values_of(hybrid.head().variables()));
  const Values expected = values_of(one.head->variables());
  for (std::size_t i = 0; i < 4; ++i) expect_close(head[i], expected[i]);
}

}  // namespace hybrid_test
}  // namespace
}  // namespace tutti
