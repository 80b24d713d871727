// Interleave, flat_map, unbatch, padded_batch, enumerate and take_while.
// SPDX-License-Identifier: Apache-2.0
#include "tests/data/dataset_values.h"

namespace tutti {
namespace more_decorators_test {

using data_test::expect_error;
using data_test::first_numbers;
using data_test::number_in;
using data_test::Rows;
using data_test::rows_of;
using data_test::scalars_of;
using testing::ElementsAre;
using testing::IsEmpty;

Dataset repeated(const Element& element, std::int64_t count) {
  return Dataset::from_tensors({element[0]}).repeat(count);
}

// The example of tf.data.Dataset.interleave's documentation.
TEST(InterleaveDataset, FollowsTheDocumentedOrder) {
  const Dataset dataset =
      Dataset::range(1, 6).interleave([](const Element& e) { return repeated(e, 6); },
                                      InterleaveOptions{.cycle_length = 2, .block_length = 4});
  EXPECT_THAT(scalars_of(dataset), ElementsAre(1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 2, 2, 3, 3, 3, 3, 4, 4,
                                               4, 4, 3, 3, 4, 4, 5, 5, 5, 5, 5, 5));
  EXPECT_EQ(dataset.cardinality(), std::nullopt);
}

TEST(InterleaveDataset, LeavesOutEmptyDatasets) {
  auto up_to = [](const Element& e) { return repeated(e, number_in(e) % 2); };
  EXPECT_THAT(scalars_of(Dataset::range(6).interleave(up_to, InterleaveOptions{.cycle_length = 9})),
              ElementsAre(1, 3, 5));
  EXPECT_THAT(scalars_of(Dataset::range(0).interleave(up_to)), IsEmpty());
}

TEST(InterleaveDataset, RefusesWrongOptions) {
  expect_error(ErrorCode::kInvalidArgument, {"Dataset::interleave", "got 0 and 1"}, [] {
    Dataset::range(1).interleave([](const Element& e) { return repeated(e, 1); },
                                 InterleaveOptions{.cycle_length = 0});
  });
  expect_error(ErrorCode::kInvalidArgument, {"Dataset::interleave"},
               [] { Dataset::range(1).interleave(nullptr); });
  expect_error(ErrorCode::kInvalidArgument, {"Dataset::flat_map"},
               [] { Dataset::range(1).flat_map(nullptr); });
}

TEST(FlatMapDataset, PutsDatasetsOneAfterTheOther) {
  const Dataset dataset =
      Dataset::range(4).flat_map([](const Element& e) { return repeated(e, number_in(e)); });
  EXPECT_THAT(scalars_of(dataset), ElementsAre(1, 2, 2, 3, 3, 3));
}

TEST(UnbatchDataset, UndoesBatch) {
  EXPECT_EQ(scalars_of(Dataset::range(10).batch(4).unbatch()), first_numbers(10));
  EXPECT_EQ(rows_of(Dataset::range(8).batch(2).batch(2).unbatch()),
            (Rows{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(Dataset::range(8).batch(2).unbatch().batch_size(), std::nullopt);
  expect_error(ErrorCode::kFailedPrecondition, {"not batched"},
               [] { rows_of(Dataset::range(3).unbatch()); });
}

TEST(TakeWhileDataset, EndsAtTheFirstRefusedElement) {
  const Dataset dataset =
      Dataset::range(9).take_while([](const Element& e) { return number_in(e) % 4 != 3; });
  EXPECT_THAT(scalars_of(dataset), ElementsAre(0, 1, 2));
  EXPECT_EQ(dataset.cardinality(), std::nullopt);
  expect_error(ErrorCode::kInvalidArgument, {"Dataset::take_while"},
               [] { Dataset::range(1).take_while(nullptr); });
}

TEST(EnumerateDataset, PutsTheIndexInFront) {
  const Dataset dataset = Dataset::range(7, 9).enumerate(5);
  EXPECT_EQ(dataset.cardinality(), 2);
  EXPECT_THAT(scalars_of(dataset), ElementsAre(5, 6));
  const Element first = *dataset.iterate()->next();
  EXPECT_THAT(first.names(), ElementsAre("index", "features"));
  EXPECT_EQ(first.at("features").item_int(), 7);
}

Dataset growing(std::int64_t count) {
  return Dataset::range(1, count + 1).map([](const Element& e) {
    return Element({Tensor::full({number_in(e), 2}, static_cast<double>(number_in(e)))});
  });
}

TEST(PaddedBatchDataset, PadsToTheLargestOfTheBatch) {
  const Dataset dataset = growing(3).padded_batch(2);
  EXPECT_EQ(rows_of(dataset), (Rows{{1, 1, 0, 0, 2, 2, 2, 2}, {3, 3, 3, 3, 3, 3}}));
  EXPECT_EQ(dataset.cardinality(), 2);
  EXPECT_EQ(dataset.batch_size(), 2);
  EXPECT_EQ(rows_of(growing(3).padded_batch(2, {.drop_remainder = true})).size(), 1u);
  EXPECT_EQ((*dataset.iterate()->next())[0].shape(), (Shape{2, 2, 2}));
}

TEST(PaddedBatchDataset, PadsToTheGivenShapeWithTheGivenValue) {
  PaddedBatchOptions options;
  options.padded_shapes = {{kLargest, 3}};
  options.padding_values = {9};
  EXPECT_EQ(rows_of(growing(2).padded_batch(2, options)),
            (Rows{{1, 1, 9, 9, 9, 9, 2, 2, 9, 2, 2, 9}}));
  options.padded_shapes = {{1, 2}};
  expect_error(ErrorCode::kInvalidArgument,
               {"Dataset::padded_batch", "'features'", "at most 1 in dimension 0", "with 2"},
               [&] { rows_of(growing(2).padded_batch(2, options)); });
  options.padded_shapes = {{1}};
  expect_error(ErrorCode::kInvalidArgument, {"rank 2, got [1]"},
               [&] { rows_of(growing(2).padded_batch(2, options)); });
}

}  // namespace more_decorators_test
}  // namespace tutti
