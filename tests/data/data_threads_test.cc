// Datasets with threads of their own: parallel map, prefetch, and the shared cache.
// SPDX-License-Identifier: Apache-2.0
#include <atomic>

#include "tests/data/dataset_values.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"

namespace tutti {
namespace data_threads_test {

using namespace data_test;
using testing::ElementsAre;

TimePoint soon() { return Clock::system().now() + std::chrono::seconds(60); }

Dataset range_failing_at(std::int64_t end, std::int64_t bad) {
  return Dataset::range(end).map([bad](const Element& element) -> Element {
    if (number_in(element) == bad) fail(ErrorCode::kDataLoss, "element ", bad, " is broken");
    return element;
  });
}

/// Values, with -1 in the place of an exception.
std::vector<std::int64_t> values_and_errors(const Dataset& dataset) {
  std::vector<std::int64_t> values;
  auto elements = dataset.iterate();
  for (;;) {
    try {
      auto element = elements->next();
      if (!element) return values;
      values.push_back(number_in(*element));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDataLoss);
      values.push_back(-1);
    }
  }
}

TEST(ParallelMap, KeepsTheOrder) {
  for (int threads : {2, 3, 8}) {
    const Dataset mapped = Dataset::range(200).map(
        [](const Element& element) {
          // The earlier elements take longer.
          const std::int64_t value = number_in(element);
          if (value % 7 == 0) Clock::system().sleep_for(std::chrono::microseconds(300));
          return Element({number(value)});
        },
        MapOptions{.num_parallel_calls = threads});
    EXPECT_EQ(scalars_of(mapped), first_numbers(200)) << threads << " threads";
    EXPECT_EQ(mapped.cardinality(), 200);
  }
}

TEST(ParallelMap, WorksOnSeveralElementsAtOnce) {
  std::atomic<int> inside = 0;
  Event all_inside;
  const Dataset mapped = Dataset::range(3).map(
      [&](const Element& element) {
        if (++inside == 3) all_inside.set();
        if (!all_inside.wait_until(soon())) fail(ErrorCode::kDeadlineExceeded, "alone");
        return element;
      },
      MapOptions{.num_parallel_calls = 3});
  EXPECT_EQ(scalars_of(mapped), first_numbers(3));
}

TEST(ParallelMap, PutsExceptionsInTheirElementsPlace) {
  const MapOptions parallel{.num_parallel_calls = 4};
  auto same = [](const Element& element) { return element; };
  auto failing = [](const Element& element) -> Element {
    if (number_in(element) == 2) fail(ErrorCode::kDataLoss, "no twos");
    return element;
  };
  const auto expected = ElementsAre(0, 1, -1, 3, 4);
  EXPECT_THAT(values_and_errors(Dataset::range(5).map(failing)), expected);
  EXPECT_THAT(values_and_errors(Dataset::range(5).map(failing, parallel)), expected);
  EXPECT_THAT(values_and_errors(range_failing_at(5, 2).map(same, parallel)), expected);
  EXPECT_THAT(values_and_errors(range_failing_at(5, 0).map(same, parallel)),
              ElementsAre(-1, 1, 2, 3, 4));
}

TEST(ParallelMap, SkipsElementsThatAreAlreadyInWork) {
  auto elements =
      Dataset::range(30)
          .map([](const Element& element) { return element; }, MapOptions{.num_parallel_calls = 2})
          .iterate();
  EXPECT_EQ(number_in(*elements->next()), 0);
  elements->skip(2);
  EXPECT_EQ(number_in(*elements->next()), 3);
  elements->skip(20);
  EXPECT_EQ(number_in(*elements->next()), 24);
  elements->skip(100);
  EXPECT_FALSE(elements->next());
}

TEST(ParallelMap, StopsWhenDestroyedEarly) {
  std::atomic<int> calls = 0;
  for (int taken : {0, 1, 5}) {
    auto elements = Dataset::range(1'000'000)
                        .map(
                            [&](const Element& element) {
                              ++calls;
                              return element;
                            },
                            MapOptions{.num_parallel_calls = 3})
                        .iterate();
    for (int i = 0; i < taken; ++i) elements->next();
  }
  EXPECT_LE(calls, 3 * (5 + 6));
}

TEST(Prefetch, YieldsTheSameElements) {
  for (int depth : {0, 1, 2, 100}) {
    EXPECT_EQ(scalars_of(Dataset::range(50).prefetch(depth)), first_numbers(50));
  }
  EXPECT_EQ(Dataset::range(50).prefetch(3).cardinality(), 50);
  EXPECT_TRUE(scalars_of(Dataset::range(0).prefetch(2)).empty());
  EXPECT_ERROR(Dataset::range(5).prefetch(-1), kInvalidArgument, "Dataset::prefetch", "-1");
}

TEST(Prefetch, ReadsAheadUpToItsDepth) {
  std::atomic<int> read = 0;
  Event fourth;
  auto elements = Dataset::range(100)
                      .map([&](const Element& element) {
                        if (++read == 4) fourth.set();
                        return element;
                      })
                      .prefetch(3)
                      .iterate();
  elements->next();
  // One handed out and three in the queue: these come without being asked for.
  EXPECT_TRUE(fourth.wait_until(soon()));
  Clock::system().sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(read, 4);
}

TEST(Prefetch, PutsExceptionsInTheirElementsPlace) {
  EXPECT_THAT(values_and_errors(range_failing_at(4, 1).prefetch(2)), ElementsAre(0, -1, 2, 3));
}

TEST(Prefetch, EndsOnceAndForAll) {
  auto elements = Dataset::range(1).prefetch(1).iterate();
  EXPECT_TRUE(elements->next());
  EXPECT_FALSE(elements->next());
  EXPECT_FALSE(elements->next());
}

TEST(Prefetch, StopsWhenDestroyedInTheMiddle) {
  for (int taken = 0; taken < 4; ++taken) {
    auto elements = Dataset::range(3).repeat().prefetch(2).iterate();
    for (int i = 0; i < taken; ++i) EXPECT_TRUE(elements->next());
  }
}

TEST(Prefetch, StopsWhenDestroyedWhileItsThreadIsBlockedBelow) {
  auto release = std::make_shared<Event>();
  auto blocked = std::make_shared<Event>();
  auto slow = Dataset::from_generator([=](std::uint64_t) {
    return [=, i = 0]() mutable -> std::optional<Element> {
      if (i == 1) {
        blocked->set();
        release->wait_until(soon());
      }
      return Element({number(i++)});
    };
  });
  auto elements = slow.prefetch(1).prefetch(4).iterate();
  EXPECT_EQ(number_in(*elements->next()), 0);
  EXPECT_TRUE(blocked->wait_until(soon()));
  Event destroyed;
  auto destroyer = Executor::system().start("destroyer", [&] {
    elements.reset();
    destroyed.set();
  });
  EXPECT_FALSE(destroyed.wait_until(Clock::system().now() + std::chrono::milliseconds(20)));
  release->set();
  EXPECT_TRUE(destroyed.wait_until(soon()));
}

TEST(Prefetch, SkipsBeforeAndAfterItsStart) {
  auto elements = Dataset::range(20).prefetch(2).iterate();
  elements->skip(5);
  EXPECT_EQ(number_in(*elements->next()), 5);
  elements->skip(4);
  EXPECT_EQ(number_in(*elements->next()), 10);
}

/// A dataset of `length` numbers that counts how often an element was read.
struct CountedRange {
  std::shared_ptr<std::atomic<int>> reads = std::make_shared<std::atomic<int>>(0);
  Dataset dataset(std::int64_t length) const {
    return Dataset::range(length).map([reads = reads](const Element& element) {
      ++*reads;
      return element;
    });
  }
};

TEST(Cache, ReadsBelowOnce) {
  const CountedRange counted;
  const Dataset cached = counted.dataset(5).shuffle(5, 1).cache();
  const auto first = scalars_of(cached, 0);
  EXPECT_EQ(scalars_of(cached, 1), first);
  EXPECT_EQ(scalars_of(cached.repeat(2)).size(), 10u);
  EXPECT_EQ(*counted.reads, 5);
}

TEST(Cache, IsFilledByAWholePassAlone) {
  const CountedRange counted;
  const Dataset cached = counted.dataset(5).cache();
  EXPECT_EQ(scalars_of(cached.take(4)), first_numbers(4));
  EXPECT_EQ(*counted.reads, 4);
  EXPECT_EQ(scalars_of(cached), first_numbers(5));
  EXPECT_EQ(*counted.reads, 9);
  EXPECT_EQ(scalars_of(cached), first_numbers(5));
  EXPECT_EQ(*counted.reads, 9);
}

TEST(Cache, APassWithSkippedElementsIsWholeAndOneWithAnErrorIsNot) {
  const CountedRange counted;
  const Dataset cached = counted.dataset(5).cache();
  auto elements = cached.iterate();
  elements->skip(3);
  EXPECT_EQ(number_in(*elements->next()), 3);
  while (elements->next()) {
  }
  EXPECT_EQ(scalars_of(cached), first_numbers(5));
  EXPECT_EQ(*counted.reads, 5);

  const Dataset broken = range_failing_at(4, 1).cache();
  EXPECT_THAT(values_and_errors(broken), ElementsAre(0, -1, 2, 3));
  EXPECT_THAT(values_and_errors(broken), ElementsAre(0, -1, 2, 3));
}

TEST(Cache, IsFilledByTwoIteratorsAtOnce) {
  const Dataset cached = Dataset::range(6).cache();
  auto a = cached.iterate();
  auto b = cached.iterate();
  a->next();
  EXPECT_EQ(data_test::drain(*b).size(), 6u);
  EXPECT_EQ(data_test::drain(*a).size(), 5u);
  EXPECT_EQ(scalars_of(cached), first_numbers(6));
}

TEST(Datasets, AreIteratedByManyThreadsAtOnce) {
  const Dataset dataset =
      Dataset::range(64)
          .cache()
          .shuffle(16, 4)
          .map([](const Element& element) { return element; }, MapOptions{.num_parallel_calls = 2})
          .batch(4)
          .prefetch(2);
  const auto expected = rows_of(Dataset::range(64).shuffle(16, 4).batch(4), 5);
  std::atomic<int> right = 0;
  {
    std::vector<std::unique_ptr<Thread>> threads;
    for (int i = 0; i < 4; ++i) {
      threads.push_back(Executor::system().start("reader", [&] {
        if (rows_of(dataset, 5) == expected) ++right;
      }));
    }
  }
  EXPECT_EQ(right, 4);
}

}  // namespace data_threads_test
}  // namespace tutti
