// Repeating, selecting and mapping elements, on the caller's thread.
// SPDX-License-Identifier: Apache-2.0
#include "tests/data/dataset_values.h"

namespace tutti {
namespace decorators_test {

using data_test::drain;
using data_test::expect_error;
using data_test::first_numbers;
using data_test::number;
using data_test::number_in;
using data_test::Rows;
using data_test::rows_of;
using data_test::scalars_of;
using testing::ElementsAre;
using testing::IsEmpty;

TEST(RepeatDataset, RepeatsCountTimesOrIndefinitely) {
  EXPECT_THAT(scalars_of(Dataset::range(2).repeat(3)), ElementsAre(0, 1, 0, 1, 0, 1));
  EXPECT_THAT(scalars_of(Dataset::range(2).repeat().take(5)), ElementsAre(0, 1, 0, 1, 0));
  EXPECT_THAT(scalars_of(Dataset::range(2).repeat(0)), IsEmpty());
  EXPECT_EQ(Dataset::range(2).repeat(3).cardinality(), 6);
  EXPECT_EQ(Dataset::range(2).repeat().cardinality(), kInfinite);
  EXPECT_EQ(Dataset::range(2).repeat(0).cardinality(), 0);
  EXPECT_EQ(Dataset::range(2).repeat().repeat(2).cardinality(), kInfinite);
  expect_error(ErrorCode::kInvalidArgument, {"Dataset::repeat", "-2"},
               [] { Dataset::range(2).repeat(-2); });
}

TEST(RepeatDataset, OfNothingForEverEnds) {
  EXPECT_THAT(scalars_of(Dataset::range(0).repeat()), IsEmpty());
  EXPECT_EQ(Dataset::range(0).repeat().cardinality(), 0);
  const Dataset none = Dataset::range(4).filter([](const Element&) { return false; });
  EXPECT_THAT(scalars_of(none.repeat()), IsEmpty());
}

TEST(RepeatDataset, SkipsWholePassesWithoutStartingThem) {
  int calls = 0;
  const Dataset counted = Dataset::range(3).shuffle(3, 9).map([&](const Element& element) {
    ++calls;
    return element;
  });
  auto elements = counted.repeat(INT64_MAX).iterate();
  elements->skip(3'000'000'000'001);
  EXPECT_EQ(number_in(*elements->next()),
            scalars_of(Dataset::range(3).shuffle(3, 9), 1'000'000'000'000)[1]);
  EXPECT_EQ(calls, 1);
}

TEST(ShardDataset, YieldsEveryNthElement) {
  EXPECT_THAT(scalars_of(Dataset::range(10).shard(3, 0)), ElementsAre(0, 3, 6, 9));
  EXPECT_THAT(scalars_of(Dataset::range(10).shard(3, 1)), ElementsAre(1, 4, 7));
  EXPECT_THAT(scalars_of(Dataset::range(2).shard(5, 3)), IsEmpty());
  for (std::int64_t length = 0; length < 12; ++length) {
    for (std::int64_t index = 0; index < 4; ++index) {
      const Dataset shard = Dataset::range(length).shard(4, index);
      EXPECT_EQ(shard.cardinality(), static_cast<std::int64_t>(scalars_of(shard).size()));
    }
  }
}

TEST(ShardDataset, RefusesAnIndexOutsideTheCount) {
  for (auto [count, index] : {std::pair{0, 0}, {3, 3}, {3, -1}, {-1, 0}}) {
    expect_error(ErrorCode::kInvalidArgument, {"Dataset::shard", "0 <= index < count"},
                 [count = count, index = index] { Dataset::range(4).shard(count, index); });
  }
}

TEST(TakeAndSkip, CutTheDataset) {
  const Dataset five = Dataset::range(5);
  EXPECT_THAT(scalars_of(five.take(2)), ElementsAre(0, 1));
  EXPECT_THAT(scalars_of(five.take(9)), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(scalars_of(five.take(kInfinite)), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(scalars_of(five.skip(2)), ElementsAre(2, 3, 4));
  EXPECT_THAT(scalars_of(five.skip(9)), IsEmpty());
  EXPECT_THAT(scalars_of(five.skip(kInfinite)), IsEmpty());
  EXPECT_THAT(scalars_of(five.skip(1).take(2).skip(1)), ElementsAre(2));
  EXPECT_EQ(five.take(9).cardinality(), 5);
  EXPECT_EQ(five.take(2).cardinality(), 2);
  EXPECT_EQ(five.repeat().take(7).cardinality(), 7);
  EXPECT_EQ(five.skip(9).cardinality(), 0);
  EXPECT_EQ(five.repeat().skip(9).cardinality(), kInfinite);
  expect_error(ErrorCode::kInvalidArgument, {"Dataset::take", "-2"}, [&] { five.take(-2); });
  expect_error(ErrorCode::kInvalidArgument, {"Dataset::skip", "-2"}, [&] { five.skip(-2); });
}

TEST(TakeDataset, ReadsNoMoreThanItYields) {
  int read = 0;
  const Dataset counted = Dataset::range(9).map([&](const Element& element) {
    ++read;
    return element;
  });
  rows_of(counted.take(3));
  EXPECT_EQ(read, 3);
}

TEST(MapDataset, AppliesTheFunction) {
  const Dataset squares = Dataset::range(4).map([](const Element& element) {
    return Element({number(number_in(element) * number_in(element))});
  });
  EXPECT_THAT(scalars_of(squares), ElementsAre(0, 1, 4, 9));
  EXPECT_EQ(squares.cardinality(), 4);
  expect_error(ErrorCode::kInvalidArgument, {"Dataset::map"},
               [] { Dataset::range(4).map(nullptr); });
  expect_error(ErrorCode::kInvalidArgument, {"num_parallel_calls", "got 0"}, [] {
    Dataset::range(4).map([](const Element& e) { return e; }, MapOptions{.num_parallel_calls = 0});
  });
}

TEST(FilterDataset, KeepsWhatThePredicateAccepts) {
  const Dataset even =
      Dataset::range(7).filter([](const Element& element) { return number_in(element) % 2 == 0; });
  EXPECT_THAT(scalars_of(even), ElementsAre(0, 2, 4, 6));
  EXPECT_EQ(even.cardinality(), std::nullopt);
  EXPECT_EQ(even.batch(2).cardinality(), std::nullopt);
  auto elements = even.iterate();
  elements->skip(2);
  EXPECT_EQ(drain(*elements), (Rows{{4}, {6}}));
  expect_error(ErrorCode::kInvalidArgument, {"Dataset::filter"},
               [] { Dataset::range(4).filter(nullptr); });
}

}  // namespace decorators_test
}  // namespace tutti
