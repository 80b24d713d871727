// Tests the coordinator and its watchdog, with workers in this process.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/coordinator/cluster_coordinator.h"

#include <set>

#include "strategy/parameter_server/coordinator/coordinator_core.h"
#include "tests/strategy/parameter_server/coordinator_kit.h"
#include "tests/support/warnings.h"
#include "tutti/autograd/variable.h"

namespace tutti {
namespace cluster_coordinator_test {

using testing::CountingStrategy;
using testing::expect_closure_error;
using testing::expect_error;
using testing::expect_tensor;
using testing::Gate;
using testing::HangWatchdog;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

/// Fixture with a coordinator that has a small queue, and workers that start late.
class CoordinatorTest : public ::testing::Test {
 protected:
  HangWatchdog watchdog_{"a coordinator"};
  CountingStrategy strategy_{5};
  ClusterCoordinator coordinator_{strategy_, {.most_queued = 2, .start_delay = 3ms}};

  void define_count() {
    coordinator_.define("count", [this] { strategy_.count(); });
  }
  /// Runs a step in which every worker calls meet() once, and returns the results.
  template <class Argument>
  std::vector<Nest> on_each_worker(std::string_view step, const Argument& argument) {
    num_missing_ = strategy_.num_workers();
    std::vector<RemoteValue> values;
    for (int i = 0; i < strategy_.num_workers(); ++i) {
      values.push_back(coordinator_.schedule(step, argument));
    }
    return coordinator_.fetch(values);
  }
  /// Waits until every worker has called meet().
  void meet() {
    --num_missing_;
    while (num_missing_ > 0) Clock::system().sleep_for(1ms);
  }
  std::atomic<int> num_missing_{0};
  /// Defines "next", which returns the next element of an iterator.
  void define_next() {
    coordinator_.define("next",
                        [](DatasetIterator& iterator) { return iterator.next().features(); });
  }
};

TEST(ClusterCoordinatorOptions, LimitsBelowOneAreRejected) {
  testing::CountingStrategy strategy(1);
  const auto refused = [&](const ClusterCoordinatorOptions& options) {
    EXPECT_INVALID(ClusterCoordinator(strategy, options), "ClusterCoordinator: expected", "got");
  };
  refused({.most_queued = 0});
  refused({.most_attempts = 0});
}

TEST_F(CoordinatorTest, StrategyHasSingleCoordinator) {
  ClusterCoordinator second(strategy_);
  EXPECT_EQ(second, coordinator_);
  define_count();
  second.start();
  second.schedule("count");
  coordinator_.join();
  strategy_.expect_counted(1);
  CountingStrategy other(1);
  EXPECT_NE(ClusterCoordinator(other), coordinator_);
}

TEST_F(CoordinatorTest, ResultsKeepNestedStructure) {
  using Result = std::tuple<int, std::pair<int, int>, std::vector<int>, std::map<std::string, int>>;
  coordinator_.define("nest", [] { return Result{2, {3, 4}, {5}, {{"v", 1}}}; });
  coordinator_.define("nothing", [] {});
  coordinator_.start();
  const RemoteValue value = coordinator_.schedule("nest");
  EXPECT_EQ(value.fetch<Result>(), (Result{2, {3, 4}, {5}, {{"v", 1}}}));
  EXPECT_EQ(value.state(), RemoteValueState::kReady);
  const std::vector<RemoteValue> both = {value, coordinator_.schedule("nothing")};
  const std::vector<Nest> fetched = coordinator_.fetch(both);
  EXPECT_EQ(fetched[0].structure(), "(int64 [], (int64 [], int64 []), (int64 []), {v: int64 []})");
  EXPECT_TRUE(fetched[1].is_nothing());
  EXPECT_ERROR(value.fetch<std::vector<std::string>>(), kInvalidArgument,
               "fetch, element 0: expected a text", "got int64 []");
}

TEST_F(CoordinatorTest, WorkersShuffleInDifferentOrders) {
  coordinator_.define("all", [this](DatasetIterator& iterator) {
    meet();
    std::vector<std::int64_t> all;
    while (const auto batch = iterator.try_next()) all.push_back(batch->features().item_int());
    return all;
  });
  coordinator_.start();
  const auto dataset = coordinator_.create_per_worker_dataset(Dataset::range(20).shuffle(20));
  std::set<std::vector<std::int64_t>> orders;
  for (int pass = 0; pass < 2; ++pass) {
    for (const Nest& nest : on_each_worker("all", dataset.iterate())) {
      orders.insert(internal::from_nest<std::vector<std::int64_t>>(nest, "order"));
    }
  }
  EXPECT_EQ(orders.size(), 10u);
  for (const auto& order : orders) {
    EXPECT_EQ(std::set<std::int64_t>(order.begin(), order.end()).size(), 20u);
  }
}

TEST_F(CoordinatorTest, EachWorkerHasItsOwnVariable) {
  coordinator_.define("add", [](Variable& variable) { variable.assign_add(Tensor(1.0f)); });
  coordinator_.define("read", [this](const Variable& variable) {
    meet();
    return variable.value();
  });
  const auto counters = coordinator_.create_per_worker([](int worker) {
    return Variable(Tensor(0.0f), {.name = concat("counter of worker ", worker)});
  });
  coordinator_.start();
  for (int round = 1; round <= 3; ++round) {
    for (int i = 0; i < 10; ++i) coordinator_.schedule("add", counters);
    coordinator_.join();
    double sum = 0;
    for (const Nest& nest : on_each_worker("read", counters)) {
      EXPECT_EQ(nest.tensor()->device(), Device{});
      sum += nest.tensor()->item();
    }
    EXPECT_EQ(sum, 10.0 * round);
  }
}

TEST_F(CoordinatorTest, DatasetFunctionFailureIsInputError) {
  define_next();
  coordinator_.start();
  const auto expect_input_error = [&](ErrorCode code, const std::string& part, const auto& make) {
    const auto dataset = coordinator_.create_per_worker_dataset(make);
    const RemoteValue value = coordinator_.schedule("next", dataset.iterate());
    expect_closure_error(ErrorOrigin::kInput, code, part, [&] { coordinator_.join(); });
    expect_closure_error(ErrorOrigin::kInput, code, part, [&] { value.fetch(); });
  };
  expect_input_error(ErrorCode::kInvalidArgument, "'forbidden'", [](const InputContext&) {
    const Variable variable(Tensor(1.0f), {.name = "forbidden"});
    return Dataset::range(3);
  });
  expect_input_error(ErrorCode::kNotFound, "is not here", [](const InputContext&) -> Dataset {
    fail(ErrorCode::kNotFound, "a table of the chief's is not here");
  });
}

TEST_F(CoordinatorTest, PerWorkerDatasetAcceptsDatasetOrFunction) {
  coordinator_.define("next", [](DatasetIterator iterator) { return iterator.next().features(); });
  coordinator_.define("first", [this](DatasetIterator iterator) {
    meet();
    return std::pair(ClosureContext::current()->worker(), iterator.next().features().item_int());
  });
  coordinator_.start();
  const auto numbers = coordinator_.create_per_worker_dataset(Dataset::range(1, 11).batch(4));
  const Tensor first = coordinator_.schedule("next", numbers.iterate()).fetch();
  expect_tensor(first, {4}, {1, 2, 3, 4});
  const auto own = coordinator_.create_per_worker_dataset([](const InputContext& context) {
    EXPECT_EQ(context.num_input_pipelines, 5);
    return Dataset::range(100).shard(5, context.input_pipeline_id);
  });
  for (const Nest& nest : on_each_worker("first", own.iterate())) {
    const auto [worker, first_of_own] = internal::from_nest<std::pair<int, int>>(nest, "first");
    EXPECT_EQ(first_of_own, worker);
  }
}

TEST_F(CoordinatorTest, StepAcceptsTwoIterators) {
  coordinator_.define("sum", [](DatasetIterator& a, DatasetIterator& b) {
    return a.next().features().item_int() + b.next().features().item_int();
  });
  coordinator_.start();
  const auto low = coordinator_.create_per_worker_dataset(Dataset::range(0, 5));
  const auto high = coordinator_.create_per_worker_dataset(Dataset::range(5, 10));
  EXPECT_EQ(coordinator_.schedule("sum", low.iterate(), high.iterate()).fetch<int>(), 5);
}

TEST_F(CoordinatorTest, IteratorsAreReleasedWhenDropped) {
  define_next();
  coordinator_.start();
  const auto alive = std::make_shared<int>(0);
  {
    const auto dataset = coordinator_.create_per_worker_dataset([alive](const InputContext&) {
      return Dataset::from_generator([alive](std::uint64_t) -> Dataset::Generator {
        return [held = std::make_shared<std::shared_ptr<int>>(alive)] {
          return std::optional<Element>(Element({Tensor(1.0f)}));
        };
      });
    });
    for (int round = 0; round < 10; ++round) {
      const auto iterator = dataset.iterate();
      for (int i = 0; i < 5; ++i) coordinator_.schedule("next", iterator);
      coordinator_.join();
    }
  }
  // The remaining owners are `alive` and the function that defines the dataset.
  testing::expect_soon([&] { return alive.use_count() == 2; });
}

TEST_F(CoordinatorTest, StepsStillRunAfterFailedAssertion) {
  define_count();
  coordinator_.define("assert", [] { fail(ErrorCode::kInvalidArgument, "assertion failed"); });
  coordinator_.start();
  for (int i = 0; i < 3; ++i) coordinator_.schedule("count");
  coordinator_.join();
  coordinator_.schedule("assert");
  expect_closure_error(ErrorOrigin::kUser, ErrorCode::kInvalidArgument, "assertion failed",
                       [&] { coordinator_.join(); });
  coordinator_.schedule("count");
  coordinator_.join();
  EXPECT_TRUE(coordinator_.done());
  strategy_.expect_counted(4);
  coordinator_.schedule("assert");
  expect_closure_error(ErrorOrigin::kUser, ErrorCode::kInvalidArgument, "assertion failed", [&] {
    for (;;) {  // a later call throws the error; the watchdog limits this loop
      coordinator_.schedule("count");
      Clock::system().sleep_for(1ms);
    }
  });
}

TEST_F(CoordinatorTest, FailedResourceFailsOnlyClosuresUsingIt) {
  define_count();
  coordinator_.define("use", [](const std::shared_ptr<int>& value) { return *value; });
  const auto broken = coordinator_.create_per_worker(
      [](int) -> std::shared_ptr<int> { throw std::runtime_error("no such device"); });
  coordinator_.start();
  coordinator_.schedule("count");
  coordinator_.join();           // "count" does not use `broken`, so it succeeds
  for (int i = 0; i < 2; ++i) {  // the second round gets the cached error
    const RemoteValue value = coordinator_.schedule("use", broken);
    expect_closure_error(ErrorOrigin::kInput, ErrorCode::kInternal, "no such device",
                         [&] { coordinator_.join(); });
    expect_closure_error(ErrorOrigin::kInput, ErrorCode::kInternal, "could not be created",
                         [&] { value.fetch<int>(); });
  }
  coordinator_.schedule("count");
  coordinator_.join();
  strategy_.expect_counted(2);
}

TEST_F(CoordinatorTest, LongClosureIsCancelledWhenAnyClosureFails) {
  std::atomic<bool> runs{false};
  coordinator_.define("long", [&runs] {
    runs = true;
    for (;;) {
      ClosureContext::current()->throw_if_cancelled();
      Clock::system().sleep_for(1ms);
    }
  });
  coordinator_.define("assert", [&runs] {
    while (!runs) Clock::system().sleep_for(1ms);
    fail(ErrorCode::kInvalidArgument, "assertion failed");
  });
  coordinator_.define("next", [this](DatasetIterator& iterator) {
    strategy_.count();
    return iterator.next().features();
  });
  coordinator_.start();
  const auto dataset = coordinator_.create_per_worker_dataset(Dataset::range(10));
  const auto iterator = dataset.iterate();
  const RemoteValue endless = coordinator_.schedule("long");
  coordinator_.schedule("assert");
  expect_closure_error(ErrorOrigin::kUser, ErrorCode::kInvalidArgument, "assertion failed",
                       [&] { coordinator_.join(); });
  EXPECT_EQ(endless.state(), RemoteValueState::kAborted);
  EXPECT_ERROR(endless.fetch(), kCancelled, "please schedule it again");
  for (int i = 0; i < 3; ++i) coordinator_.schedule("next", iterator);
  coordinator_.join();
  strategy_.expect_counted(3);
}

TEST(Coordinator, MisuseErrorsNameRemedy) {
  CountingStrategy strategy(2);
  ClusterCoordinator coordinator(strategy);
  coordinator.define("train", [](Tensor, float) {});
  coordinator.define("trace", [](std::int32_t number) { return number; });
  coordinator.define("evaluate", [] {});
  coordinator.define("print", [] {});
  expect_error(ErrorCode::kAlreadyExists, {"train(Tensor, float32) -> nothing", "train() -> int32"},
               [&] { coordinator.define("train", [] { return 1; }); });
  EXPECT_ERROR(coordinator.schedule("print"), kFailedPrecondition, "was not started");
  coordinator.start();
  EXPECT_ERROR(coordinator.define("late", [] {}), kFailedPrecondition, "after start()");
  EXPECT_ERROR(coordinator.schedule("trian"), kNotFound, "got 'trian'", "did you mean 'train'");
  EXPECT_ERROR(coordinator.schedule("train", 1), kInvalidArgument,
               "train(Tensor, float32) -> nothing", "(int64 [])");
  coordinator.schedule("trace", 2.5f);
  EXPECT_ERROR(coordinator.join(), kInvalidArgument, "input error", "step 'trace', argument 0",
               "expected int32", "got float32 []");
  coordinator.schedule("trace", std::int64_t{1} << 40);
  EXPECT_ERROR(coordinator.join(), kInvalidArgument, "to 2147483647, got 1099511627776");
}

TEST(Coordinator, RandomContextStepEqualsClosureNumber) {
  CountingStrategy strategy(2);
  ClusterCoordinator coordinator(strategy);
  coordinator.define("draw", [] {
    const RandomContext& context = current_random_context();
    return static_cast<std::int64_t>(context.step);
  });
  coordinator.start();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(coordinator.schedule("draw").fetch<int>(), i);
}

TEST(CoordinatorWatchdog, DoesNotStartThreadWithoutTimeout) {
  for (const Duration timeout : {Duration(0s), Duration(-1s)}) {
    EXPECT_FALSE(Watchdog(
                     timeout, [] { return 0; }, [] { return ""; })
                     .has_thread());
  }
}

TEST(CoordinatorWatchdog, LogsStacksOncePerTimeout) {
  const HangWatchdog hang("the coordinator's watchdog");
  thrown::LogLines log;
  Event stop, twice;
  const auto stuck =
      Executor::system().start("stuck-worker", [&] { stop.wait_until(TimePoint::max()); });
  std::vector<TimePoint> times;
  const auto describe = [&] {
    times.push_back(Clock::system().now());
    if (times.size() == 2) twice.set();
    return std::string("closure 7 on worker 1");
  };
  {
    const Watchdog watchdog(
        60ms, [] { return 5; }, describe);
    EXPECT_TRUE(watchdog.has_thread());
    EXPECT_TRUE(twice.wait_until(deadline_after(Clock::system().now(), 60s)));
  }
  stop.set();
  EXPECT_GE(times[1] - times[0], 60ms);
  for (const char* part : {"no closure finished for", "closure 7 on worker 1",
                           "stuck-worker\n    ",  // followed by at least one frame
                           "ps-watchdog\n    "}) {
    EXPECT_THAT(log.text(), HasSubstr(part));
  }
}

TEST(CoordinatorWatchdog, FinishedClosureResetsTimer) {
  const HangWatchdog hang("the coordinator's watchdog");
  std::atomic<std::uint64_t> finished{0};
  std::atomic<int> num_alarms{0};
  {
    // Each poll of the watchdog sees a different count.
    const Watchdog watchdog(
        40ms, [&] { return finished.fetch_add(1); },
        [&] { return concat("alarm ", ++num_alarms); });
    while (finished < 5) Clock::system().sleep_for(5ms);
  }
  EXPECT_EQ(num_alarms, 0);
}

}  // namespace cluster_coordinator_test
}  // namespace tutti
