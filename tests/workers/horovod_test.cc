// Runs Horovod-style programs as processes, to test collectives, averaged gradients, and ranks that
// run out of data.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/horovod.h"

#include "tests/workers/worker_processes.h"

namespace tutti::worker_tests::horovod_test {

using ::testing::ElementsAre;

constexpr int kRanks = 3;

std::string code_of(const std::function<void()>& fn, std::string_view text = "") {
  try {
    fn();
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr(std::string(text)));
    return std::string(to_string(error.code()));
  }
  return "OK";
}

std::vector<float> numbers(const Tensor& tensor) {
  const auto span = tensor.host_span<float>();
  return {span.begin(), span.end()};
}

std::vector<Json> run_ranks(const char* function, int ranks = kRanks) {
  return results_of(function, MultiProcessOptions{.num_workers = ranks});
}

/// Returns the loss w * x, whose gradient is x.
Tensor loss_of(const Variable& w, float x) { return reduce_sum(w.value() * x); }

TUTTI_PROCESS_FUNCTION(hvd_collectives) {
  EXPECT_EQ(code_of([] { (void)hvd::rank(); }, "hvd::init()"), "FAILED_PRECONDITION");
  EXPECT_EQ(code_of([] { hvd::init({.local = {.devices = "cpu:0-1"}}); }, "one device, got 2"),
            "INVALID_ARGUMENT");
  EXPECT_FALSE(hvd::is_initialized());
  hvd::init();
  hvd::init();
  EXPECT_EQ(hvd::rank(), testing::this_process().index);
  EXPECT_EQ(hvd::size(), kRanks);
  EXPECT_EQ(hvd::local_rank(), hvd::rank());  // all ranks are on this host
  EXPECT_EQ(hvd::local_size(), kRanks);

  const auto own = static_cast<float>(hvd::rank() + 1);  // 1, 2, 3
  const Tensor value = {own, 10.0f * own};
  EXPECT_THAT(numbers(hvd::allreduce(value)), ElementsAre(2.0f, 20.0f));
  EXPECT_THAT(numbers(hvd::allreduce(value, ReduceOp::kSum)), ElementsAre(6.0f, 60.0f));
  EXPECT_THAT(numbers(hvd::allreduce(value, ReduceOp::kMax)), ElementsAre(3.0f, 30.0f));
  EXPECT_EQ(code_of([] { (void)hvd::allreduce(Tensor::scalar(1, DType::kInt64)); }),
            "INVALID_ARGUMENT");
  EXPECT_THAT(numbers(hvd::allgather(Tensor::full({hvd::rank()}, own))),
              ElementsAre(2.0f, 3.0f, 3.0f));
  EXPECT_THAT(numbers(hvd::broadcast(value, 2)), ElementsAre(3.0f, 30.0f));

  Variable a(Tensor::full({2}, own), {.name = "a"}), b(Tensor(own * own), {.name = "b"});
  hvd::broadcast_variables(std::vector<Variable>{a, b}, 1);
  EXPECT_THAT(numbers(a.value()), ElementsAre(2.0f, 2.0f));
  EXPECT_EQ(b.value().item(), 4.0f);
  hvd::shutdown();
  EXPECT_FALSE(hvd::is_initialized());
  return {};
}

TEST(Horovod, CollectivesCombineValuesOfAllRanks) {
  EXPECT_TRUE(run_ranks("hvd_collectives").empty());
}

TUTTI_PROCESS_FUNCTION(hvd_alone) {
  hvd::init();
  Variable w(Tensor(1.0f), {.name = "w"});
  GradientTape tape;
  const Gradient gradient =
      hvd::DistributedGradientTape(tape).gradient(loss_of(w, 3.0f), std::vector<Variable>{w})[0];
  EXPECT_EQ(gradient.dense().item(), 3.0f);
  EXPECT_EQ(hvd::allreduce(Tensor(5.0f)).item(), 5.0f);
  EXPECT_EQ(hvd::size(), 1);
  return hvd::join();
}

TEST(Horovod, JoinOfSingleProcessReturnsRankZero) {
  EXPECT_EQ(run_ranks("hvd_alone", 1).at(0).as_int(), 0);
}

TUTTI_PROCESS_FUNCTION(hvd_gradients) {
  hvd::init();
  const auto own = static_cast<float>(hvd::rank() + 1);
  Variable w(Tensor(1.0f), {.name = "w"}), unused(Tensor(1.0f), {.name = "unused"}),
      of_rank_2(Tensor(1.0f), {.name = "of_rank_2"});
  const std::vector<Variable> all{w, unused, of_rank_2};
  const auto gradients = [&](ReduceOp op) {
    GradientTape tape;
    Tensor loss = loss_of(w, own);
    if (hvd::rank() == 2) loss = loss + loss_of(of_rank_2, 30.0f);
    return hvd::DistributedGradientTape(tape, op).gradient(loss, all);
  };
  const auto means = gradients(ReduceOp::kMean);
  EXPECT_EQ(means[0].dense().item(), 2.0f);
  EXPECT_TRUE(means[1].is_none());
  EXPECT_EQ(means[2].dense().item(), 10.0f);
  EXPECT_EQ(gradients(ReduceOp::kSum)[0].dense().item(), 6.0f);

  // The gradients of two calls are averaged, exchanged once, and applied in one update.
  Sgd sgd(std::vector<Variable>{w}, {.learning_rate = 1.0, .gradient_accumulation_steps = 2});
  hvd::DistributedOptimizer optimizer(sgd);
  for (const float factor : {1.0f, 3.0f}) {
    EXPECT_EQ(w.value().item(), 1.0f);
    GradientTape tape;
    optimizer.minimize(tape, loss_of(w, factor * own));
  }
  EXPECT_EQ(w.value().item(), 1.0f - 4.0f);  // 4 is the mean of 1 x 2 and 3 x 2
  optimizer.apply_gradients(std::vector<Gradient>{Gradient(Tensor(own))});
  optimizer.apply_gradients(std::vector<Gradient>{Gradient(Tensor(own))});
  EXPECT_EQ(w.value().item(), -3.0f - 2.0f);
  return {};
}

TEST(Horovod, GradientsAreAveragedAcrossRanks) { EXPECT_TRUE(run_ranks("hvd_gradients").empty()); }

TEST(Horovod, GradientTapeRejectsMaxReduction) {
  GradientTape tape;
  EXPECT_EQ(code_of([&] { hvd::DistributedGradientTape(tape, ReduceOp::kMax); }, "got MAX"),
            "INVALID_ARGUMENT");
}

// Rank r has r + 1 batches; afterwards it contributes zeros, and its copy of w does not change.
TUTTI_PROCESS_FUNCTION(hvd_uneven) {
  hvd::init();
  Variable w(Tensor(0.0f), {.name = "w"});
  Sgd sgd(std::vector<Variable>{w}, 1.0);
  hvd::DistributedOptimizer optimizer(sgd);
  std::vector<float> sums;
  for (int batch = 0; batch <= hvd::rank(); ++batch) {
    GradientTape tape;
    optimizer.minimize(tape, loss_of(w, -3.0f));
    sums.push_back(hvd::allreduce(Tensor(1.0f), ReduceOp::kSum).item());
  }
  const int last = hvd::join();
  EXPECT_EQ(hvd::join(), kRanks - 1);  // all ranks join at the same time
  hvd::broadcast_variables(std::vector<Variable>{w}, last);
  return Json::Array{last, w.value().item(), sums.back()};
}

TEST(Horovod, JoinedRanksContributeZeros) {
  const auto values = run_ranks("hvd_uneven");
  ASSERT_EQ(values.size(), 3u);
  for (int r = 0; r < kRanks; ++r) {
    const Json::Array& value = values[static_cast<std::size_t>(r)].as_array();
    EXPECT_EQ(value[0].as_int(), 2);
    // Each step adds the number of active ranks to w: their gradients of -3, averaged over 3 ranks.
    EXPECT_EQ(value[1].as_double(), 3.0 + 2.0 + 1.0);
    EXPECT_EQ(value[2].as_double(), 3.0 - r);
  }
}

// Calls that need the joined rank fail on the remaining ranks, which can continue afterwards.
TUTTI_PROCESS_FUNCTION(hvd_refused_after_join) {
  hvd::init();
  if (hvd::rank() == 1) return hvd::join();
  const Tensor one = {1.0f};
  EXPECT_EQ(code_of([&] { (void)hvd::allgather(one); }, "allgather"), "UNIMPLEMENTED");
  EXPECT_EQ(code_of([&] { (void)hvd::allreduce(one, ReduceOp::kMin); }, "MIN"), "UNIMPLEMENTED");
  EXPECT_EQ(hvd::allreduce(one, ReduceOp::kSum).item(), 2.0f);
  return hvd::join();
}

TEST(Horovod, GatherFailsAfterRankHasJoined) {
  for (const Json& last : run_ranks("hvd_refused_after_join")) EXPECT_EQ(last.as_int(), 2);
}

TUTTI_PROCESS_FUNCTION(hvd_different_calls) {
  hvd::init();
  const Tensor one = {1.0f};
  return code_of(
      [&] {
        if (hvd::rank() == 1) (void)hvd::allgather(one);
        if (hvd::rank() != 1) (void)hvd::allreduce(one, ReduceOp::kSum);
      },
      "rank 0 calls allreduce SUM and rank 1 calls allgather");
}

TEST(Horovod, MismatchedCallsFailOnAllRanks) {
  const auto codes = run_ranks("hvd_different_calls");
  ASSERT_EQ(codes.size(), 3u);
  for (const Json& code : codes) EXPECT_EQ(code.as_string(), "INVALID_ARGUMENT");
}

// As in MaTEx, every rank trains separately, and weights are averaged from time to time.
TUTTI_PROCESS_FUNCTION(hvd_weight_averaging) {
  hvd::init();
  const auto own = static_cast<float>(hvd::rank() + 1);
  Variable w(Tensor::full({2}, 8.0f), {.name = "w"});
  Sgd optimizer(std::vector<Variable>{w}, 0.25);
  for (int round = 0; round < 2; ++round) {
    for (int step = 0; step < 2; ++step) {
      GradientTape tape;
      // Subtracts w * own / 4 from w.
      optimizer.minimize(tape, reduce_sum(w.value() * w.value()) * (0.5f * own));
    }
    w.assign(hvd::allreduce(w.value()));
  }
  return static_cast<double>(numbers(w.value())[1]);
}

TEST(Horovod, WeightsAreAveragedOverRanks) {
  // Two steps multiply the common weight by (3/4)^2, (1/2)^2 or (1/4)^2, depending on the rank.
  const double mean = (9.0 / 16.0 + 4.0 / 16.0 + 1.0 / 16.0) / 3.0;
  const auto weights = run_ranks("hvd_weight_averaging");
  ASSERT_EQ(weights.size(), 3u);
  for (const Json& weight : weights) {
    EXPECT_NEAR(weight.as_double(), 8.0 * mean * mean, 1e-6);
    EXPECT_EQ(weight.as_double(), weights[0].as_double());
  }
}

}  // namespace tutti::worker_tests::horovod_test
