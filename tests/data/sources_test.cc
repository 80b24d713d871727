// Where elements come from: tensors, ranges, generators; and combining several datasets.
// SPDX-License-Identifier: Apache-2.0
#include "tests/data/dataset_values.h"

namespace tutti {
namespace sources_test {

using data_test::drain;
using data_test::expect_error;
using data_test::first_numbers;
using data_test::number;
using data_test::numbers_of;
using data_test::Rows;
using data_test::rows_of;
using data_test::scalars_of;
using testing::ElementsAre;
using testing::IsEmpty;

Tensor int_tensor(const Shape& shape) {
  return Tensor::from(shape, first_numbers(shape.num_elements()));
}

TEST(Dataset, FromTensorSlicesYieldsRows) {
  const Dataset dataset = Dataset::from_tensor_slices({int_tensor({3, 2}), int_tensor({3})});
  EXPECT_EQ(dataset.cardinality(), 3);
  EXPECT_EQ(dataset.batch_size(), std::nullopt);
  EXPECT_EQ(rows_of(dataset), (Rows{{0, 1}, {2, 3}, {4, 5}}));
  std::int64_t i = 0;
  for (const Element& element : dataset) {
    EXPECT_EQ(element[0].shape(), (Shape{2}));
    EXPECT_EQ(element[1].shape(), Shape{});
    EXPECT_EQ(element.at("labels").item_int(), i++);
  }
  EXPECT_EQ(i, 3);
}

TEST(Dataset, FromTensorSlicesRefusesUnequalFirstDimensions) {
  expect_error(ErrorCode::kInvalidArgument, {"[3, 2]", "[4]", "component 1"}, [] {
    Dataset::from_tensor_slices({int_tensor({3, 2}), int_tensor({4})});
  });
  expect_error(ErrorCode::kInvalidArgument, {"[]"},
               [] { Dataset::from_tensor_slices({Tensor(1.0f)}); });
  expect_error(ErrorCode::kInvalidArgument, {"got none"}, [] { Dataset::from_tensor_slices({}); });
}

TEST(Dataset, FromTensorSlicesOfNoRowsIsEmpty) {
  const Dataset dataset = Dataset::from_tensor_slices({int_tensor({0, 2})});
  EXPECT_EQ(dataset.cardinality(), 0);
  EXPECT_THAT(rows_of(dataset), IsEmpty());
}

TEST(Dataset, FromTensorsRepeatedAndBatched) {
  const Dataset one =
      Dataset::from_tensors({Tensor::from<float>({1}, {1}), Tensor::from<float>({1}, {1})});
  const Dataset dataset = one.repeat(100);
  EXPECT_EQ(one.cardinality(), 1);
  EXPECT_EQ(dataset.cardinality(), 100);
  EXPECT_EQ(rows_of(dataset).size(), 100u);
  for (std::int64_t global : {5, 10}) {
    std::int64_t batches = 0;
    for (const Element& batch : dataset.batch(global)) {
      EXPECT_EQ(batch[0].shape(), (Shape{global, 1}));
      EXPECT_EQ(batch[1].shape(), (Shape{global, 1}));
      ++batches;
    }
    EXPECT_EQ(batches, 100 / global);
    EXPECT_EQ(dataset.batch(global).cardinality(), 100 / global);
  }
}

TEST(Dataset, RangeCountsUpAndDown) {
  EXPECT_THAT(scalars_of(Dataset::range(4)), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(scalars_of(Dataset::range(2, 9, 3)), ElementsAre(2, 5, 8));
  EXPECT_THAT(scalars_of(Dataset::range(2, 8, 3)), ElementsAre(2, 5));
  EXPECT_THAT(scalars_of(Dataset::range(3, -3, -2)), ElementsAre(3, 1, -1));
  EXPECT_THAT(scalars_of(Dataset::range(5, 5)), IsEmpty());
  EXPECT_THAT(scalars_of(Dataset::range(5, 3)), IsEmpty());
  EXPECT_EQ(Dataset::range(2, 9, 3).cardinality(), 3);
  EXPECT_EQ(Dataset::range(3, -3, -2).cardinality(), 3);
  EXPECT_EQ(Dataset::range(INT64_MIN, INT64_MAX, INT64_MAX).cardinality(), 3);
  expect_error(ErrorCode::kInvalidArgument, {"step", "got 0"}, [] { Dataset::range(0, 5, 0); });
}

TEST(Dataset, RangeSkipsWithoutCounting) {
  auto numbers = Dataset::range(INT64_MAX).iterate();
  numbers->skip(1'000'000'000'000);
  EXPECT_EQ((*numbers->next())[0].item_int(), 1'000'000'000'000);
  numbers->skip(INT64_MAX);
  EXPECT_EQ(numbers->next(), std::nullopt);
}

TEST(Dataset, FromGeneratorStartsAnewForEachPassAndStopsAskingAtTheEnd) {
  int made = 0;
  int asked_after_end = 0;
  const Dataset dataset = Dataset::from_generator([&](std::uint64_t epoch) {
    ++made;
    return [&, epoch, i = 0]() mutable -> std::optional<Element> {
      if (i > 2) ++asked_after_end;
      if (i == 2) return ++i, std::nullopt;
      return Element({number(static_cast<std::int64_t>(epoch) * 10 + i++)});
    };
  });
  EXPECT_EQ(dataset.cardinality(), std::nullopt);
  EXPECT_THAT(scalars_of(dataset), ElementsAre(0, 1));
  auto second = dataset.iterate(7);
  EXPECT_EQ(drain(*second), (Rows{{70}, {71}}));
  EXPECT_EQ(second->next(), std::nullopt);
  EXPECT_EQ(made, 2);
  EXPECT_EQ(asked_after_end, 0);
}

TEST(Dataset, FromGeneratorRefusesEmptyFunctions) {
  expect_error(ErrorCode::kInvalidArgument, {"from_generator"},
               [] { Dataset::from_generator(nullptr); });
  const Dataset dataset =
      Dataset::from_generator([](std::uint64_t) { return Dataset::Generator(); });
  expect_error(ErrorCode::kInvalidArgument, {"from_generator"}, [&] { dataset.iterate(); });
}

TEST(Dataset, ZipEndsWithTheShortest) {
  const Dataset zipped = Dataset::zip({Dataset::range(5), Dataset::range(10, 13)});
  EXPECT_EQ(zipped.cardinality(), 3);
  EXPECT_EQ(rows_of(zipped).size(), 3u);
  auto elements = zipped.iterate();
  elements->skip(1);
  const Element second = *elements->next();
  EXPECT_EQ(second[0].item_int(), 1);
  EXPECT_EQ(second[1].item_int(), 11);
  EXPECT_THAT(second.names(), ElementsAre("features", "labels"));
  EXPECT_TRUE(elements->next());
  EXPECT_FALSE(elements->next());
  EXPECT_FALSE(elements->next());
  EXPECT_EQ(Dataset::zip({Dataset::range(5), Dataset::range(2).repeat()}).cardinality(), 5);
  EXPECT_EQ(Dataset::zip({Dataset::range(2).repeat()}).cardinality(), kInfinite);
  expect_error(ErrorCode::kInvalidArgument, {"Dataset::zip", "none"}, [] { Dataset::zip({}); });
}

TEST(Dataset, ZipKeepsNamesThatAreAllDifferent) {
  auto named = [](const char* name) {
    return Dataset::range(2).map([name](const Element& e) { return Element({e[0]}, {name}); });
  };
  EXPECT_THAT(Dataset::zip({named("a"), named("b")}).begin()->names(), ElementsAre("a", "b"));
  EXPECT_THAT(Dataset::zip({named("a"), named("a")}).begin()->names(),
              ElementsAre("features", "labels"));
}

TEST(Dataset, ConcatenateYieldsOneAfterTheOther) {
  const Dataset both = Dataset::range(2).concatenate(Dataset::range(10, 13));
  EXPECT_THAT(scalars_of(both), ElementsAre(0, 1, 10, 11, 12));
  EXPECT_EQ(both.cardinality(), 5);
  auto elements = both.iterate();
  elements->skip(3);
  EXPECT_EQ(drain(*elements), (Rows{{11}, {12}}));
  EXPECT_EQ(Dataset::range(2).repeat().concatenate(Dataset::range(2)).cardinality(), kInfinite);
}

TEST(Dataset, ConcatenateRefusesOtherComponentsAndTypes) {
  const Dataset two = Dataset::from_tensor_slices({int_tensor({2}), int_tensor({2})});
  expect_error(ErrorCode::kInvalidArgument,
               {"concatenate", "features int64 of rank 0", "labels int64 of rank 0"},
               [&] { rows_of(Dataset::range(2).concatenate(two)); });
  const Dataset floats = Dataset::from_tensor_slices({Tensor::zeros({2})});
  expect_error(ErrorCode::kInvalidArgument, {"features int64", "features float32"},
               [&] { rows_of(Dataset::range(2).concatenate(floats)); });
}

}  // namespace sources_test
}  // namespace tutti
