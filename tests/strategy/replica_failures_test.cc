// Tests faults of one replica during every operation: each fault causes an error that names the
// replica.
// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <stdexcept>

#include "tests/strategy/strategy_helpers.h"
#include "tutti/core/clock.h"
#include "tutti/cross_device_ops/registry.h"
#include "tutti/optimizer/gradient_reducer.h"

namespace tutti::strategy_tests::replica_failures_test {
using Body = std::function<void()>;

Tensor sum_of(const Tensor& value) {
  return ReplicaContext::current().all_reduce(ReduceOp::kSum, value);
}

/// Runs `faulty_body` in replica `faulty`, and `body` in the remaining replicas.
void run_with(Strategy& strategy, int faulty, const Body& faulty_body, const Body& body) {
  strategy.run([&] { ReplicaContext::current().replica_id() == faulty ? faulty_body() : body(); });
}

/// Returns a body that sums a tensor of ones, with this shape and type, over all replicas.
Body sum_of_ones(const Shape& shape, DType dtype = DType::kFloat32) {
  return [=] { sum_of(Tensor::ones(shape, dtype, ReplicaContext::current().device())); };
}

Body in_turn(const std::vector<Body>& bodies) {
  return [=] {
    for (const Body& each : bodies) each();
  };
}

void two_sums() {
  sum_of(vec({1, 2}));
  sum_of(vec({3, 4}));
}

void merge() {
  ReplicaContext::current().merge_call([](Strategy&, const PerReplica<int>&) {}, 0);
}

void reduce_gradients() {
  GradientReducer::current()->begin({});
  GradientReducer::current()->finish();
}

/// Fault in one replica while the remaining replicas run normally.
struct Fault {
  std::string name;
  Body faulty, others;
  ErrorCode code;
  std::string text;  // expected part of the error; FAULTY stands for the faulty replica's number
};

std::vector<Fault> faults() {
  constexpr ErrorCode kLost = ErrorCode::kDataLoss, kInvalid = ErrorCode::kInvalidArgument,
                      kOrder = ErrorCode::kFailedPrecondition;
  const Body nothing = [] {}, broken = [] { fail(ErrorCode::kDataLoss, "broken"); },
             mean_of_integers =
                 [] {
                   ReplicaContext::current().all_reduce(ReduceOp::kMean, num(1, DType::kInt32));
                 },
             maximum = [] { ReplicaContext::current().all_reduce(ReduceOp::kMax, num(1)); },
             gather = [] { ReplicaContext::current().all_gather(vec({1}), 0); };
  const std::string waits = "replica FAULTY waits in ";
  return {
      {"throws_before", broken, two_sums, kLost, "step 0: broken"},
      {"throws_between", in_turn({sum_of_ones({2}), broken}), two_sums, kLost, "step 0: broken"},
      {"throws_after", in_turn({two_sums, broken}), two_sums, kLost, "step 0: broken"},
      {"throws_inside", mean_of_integers, mean_of_integers, kInvalid, "step 0: "},
      {"returns_early", sum_of_ones({2}), two_sums, kOrder,
       "all_reduce mismatch: replica FAULTY returned; "},
      {"extra_collective", in_turn({two_sums, sum_of_ones({})}), two_sums, kOrder,
       waits + "all_reduce(SUM, float32 []) at "},
      {"wrong_shape", sum_of_ones({3}), sum_of_ones({2}), kInvalid,
       waits + "all_reduce(SUM, float32 [3]) at replica_failures_test.cc:"},
      {"wrong_dtype", sum_of_ones({}, DType::kFloat64), sum_of_ones({}), kInvalid,
       waits + "all_reduce(SUM, float64 [])"},
      {"wrong_operation", maximum, sum_of_ones({}), kInvalid,
       waits + "all_reduce(MAX, float32 [])"},
      {"wrong_order", in_turn({merge, sum_of_ones({})}), in_turn({sum_of_ones({}), merge}), kOrder,
       waits + "merge_call at "},
      {"merge_call_alone", nothing, merge, kOrder,
       "merge_call mismatch: replica FAULTY returned; "},
      {"gather_against_reduce", gather, sum_of_ones({1}), kOrder,
       waits + "all_gather(axis 0, float32 [1]) at"},
      {"gradients_against_reduce", reduce_gradients, sum_of_ones({1}), kOrder,
       waits + "the reduction of gradients"},
  };
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

class FaultMatrix : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(, FaultMatrix,
                         ::testing::ValuesIn(registered_cross_device_ops(DeviceType::kCpu)),
                         [](const auto& of) { return of.param; });

// A replica that waits until the strategy's timeout (10 minutes) gets kDeadlineExceeded, and the
// test fails.
TEST_P(FaultMatrix, ErrorNamesFaultAndReplica) {
  for (const int replicas : {2, 3, 8}) {
    for (const ReplicaExecution execution :
         {ReplicaExecution::kThreads, ReplicaExecution::kSequential}) {
      for (const Fault& fault : faults()) {
        SCOPED_TRACE(concat(fault.name, ", ", replicas, " replicas"));
        LocalStrategyOptions options = on_cpus(replicas);
        options.cross_device_ops = make_cross_device_ops(GetParam());
        options.deterministic = false;
        options.execution = execution;
        MirroredStrategy strategy(options);
        const int faulty = replicas / 2;
        const Error error =
            error_of([&] { run_with(strategy, faulty, fault.faulty, fault.others); });
        EXPECT_EQ(to_string(error.code()), to_string(fault.code)) << error.message();
        EXPECT_THAT(error.message(),
                    ::testing::HasSubstr(replaced(fault.text, "FAULTY", std::to_string(faulty))));
        const auto after = strategy.run([] { return sum_of(num(1)); });
        EXPECT_EQ(numbers(after), copies_of(replicas, replicas));
      }
    }
  }
}

TEST(ReplicaFailures, MismatchErrorNamesReplicasAndLine) {
  auto strategy = mirrored(3);
  const Error error = error_of([&] {
    run_with(
        *strategy, 1, [] {}, merge);
  });
  EXPECT_THAT(error.message(), ::testing::MatchesRegex(
                                   "step 0: merge_call mismatch: replica 1 returned; replicas 0, "
                                   "2 wait in merge_call at replica_failures_test.cc:[0-9]+;.*"));
}

TEST(ReplicaFailures, OriginalExceptionIsThrownAndRemainingReplicasAbort) {
  struct Custom : std::logic_error {
    using std::logic_error::logic_error;
  };
  auto strategy = mirrored(3);
  EXPECT_THROW(run_with(
                   *strategy, 2, [] { throw Custom("original"); }, two_sums),
               Custom);
  const Strategy::Failure& failure = strategy->last_failure();
  EXPECT_EQ(failure.replica, 2);
  EXPECT_EQ(failure.messages[2], "original");
  EXPECT_THAT(failure.messages[0], ::testing::HasSubstr("stopped because the run failed"));
}

TEST(ReplicaFailures, SwallowedAbortDoesNotHideFailure) {
  auto strategy = mirrored(2);
  EXPECT_THROW(run_with(
                   *strategy, 1, [] { throw std::runtime_error("x"); },
                   [] {
                     try {
                       two_sums();
                     } catch (const Error& error) {
                       EXPECT_EQ(error.code(), ErrorCode::kAborted);
                     }
                   }),
               std::runtime_error);
}

TEST(ReplicaFailures, DeadlineErrorNamesMissingReplicas) {
  LocalStrategyOptions options = on_cpus(3);
  options.timeout = std::chrono::milliseconds(50);
  MirroredStrategy strategy(options);
  EXPECT_ERROR(
      run_with(
          strategy, 1, [] { Clock::system().sleep_for(std::chrono::milliseconds(400)); }, two_sums),
      kDeadlineExceeded, "s for replica 1; expected all 3 replicas");
}

TEST(ReplicaFailures, FailureDuringUpdateBlocksFurtherRuns) {
  auto strategy = mirrored(2);
  const Json state = strategy->save_state();
  const auto update_and_fail = [](int faulty) {
    GradientReducer& reducer = *GradientReducer::current();
    reducer.begin({});
    reducer.finish();
    if (ReplicaContext::current().replica_id() == faulty) fail(ErrorCode::kInternal, "half done");
    reducer.updates_done();
  };
  EXPECT_ERROR(strategy->run(update_and_fail, 1), kInternal, "half done");
  EXPECT_ERROR(strategy->run([] {}), kFailedPrecondition, "restore_state");
  strategy->restore_state(state);
  EXPECT_NO_THROW(strategy->run(update_and_fail, -1));
}

TEST(ReplicaFailures, FailureBeforeUpdateLeavesStrategyUsable) {
  auto strategy = mirrored(2);
  Variable v;
  {
    const auto scope = strategy->scope();
    v = Variable(Tensor(1.0f), {.aggregation = VariableAggregation::kMean});
  }
  EXPECT_ERROR(run_with(
                   *strategy, 0,
                   [] {
                     GradientReducer::current()->begin({});
                     fail(ErrorCode::kInternal, "early");
                   },
                   [&] {
                     GradientReducer::current()->begin({});
                     GradientReducer::current()->finish();
                     v.assign(9.0);
                   }),
               kInternal, "early");
  EXPECT_EQ(components(v), (std::vector<double>{1, 1}));
  EXPECT_NO_THROW(strategy->run([&] { v.assign(2.0); }));
  EXPECT_EQ(components(v), (std::vector<double>{2, 2}));
}

}  // namespace tutti::strategy_tests::replica_failures_test
