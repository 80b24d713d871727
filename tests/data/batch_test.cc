// Batches: stacking, tails, batches of batches, and tf's rule for the batch size of a dataset.
// SPDX-License-Identifier: Apache-2.0
#include "tests/data/dataset_values.h"

namespace tutti {
namespace batch_test {

using data_test::expect_error;
using data_test::first_numbers;
using data_test::numbers_of;
using data_test::Rows;
using data_test::rows_of;
using testing::ElementsAre;

const BatchOptions kDropRemainder{.drop_remainder = true};

TEST(BatchDataset, StacksRowsInOrder) {
  const Dataset dataset = Dataset::range(5).batch(2);
  EXPECT_EQ(rows_of(dataset), (Rows{{0, 1}, {2, 3}, {4}}));
  EXPECT_EQ(dataset.cardinality(), 3);
  EXPECT_TRUE(dataset.source().may_end_in_partial_batch());
  const Dataset dropped = Dataset::range(5).batch(2, kDropRemainder);
  EXPECT_EQ(rows_of(dropped), (Rows{{0, 1}, {2, 3}}));
  EXPECT_EQ(dropped.cardinality(), 2);
  EXPECT_FALSE(dropped.source().may_end_in_partial_batch());
  EXPECT_FALSE(Dataset::range(6).batch(2).source().may_end_in_partial_batch());
}

TEST(BatchDataset, StacksEveryComponentAndDType) {
  const Dataset dataset = Dataset::from_tensor_slices(
      {Tensor::from<float>({3, 2}, {0.5f, 1, 2, 3, 4, 5}),
       Tensor::from<std::uint8_t>({3}, {7, 8, 9}), Tensor::full({3, 1, 1}, 2.5, DType::kFloat64)});
  const Element batch = *dataset.batch(2).begin();
  EXPECT_EQ(batch.rows(), 2);
  EXPECT_EQ(batch[0].shape(), (Shape{2, 2}));
  EXPECT_EQ(batch[0].dtype(), DType::kFloat32);
  EXPECT_THAT(batch[0].to_doubles(), ElementsAre(0.5, 1, 2, 3));
  EXPECT_EQ(batch[1].dtype(), DType::kUInt8);
  EXPECT_THAT(batch[1].to_doubles(), ElementsAre(7, 8));
  EXPECT_EQ(batch[2].shape(), (Shape{2, 1, 1}));
  EXPECT_THAT(batch.names(), ElementsAre("features", "labels", "sample_weight"));
}

TEST(BatchDataset, OfBatchesHasOneMoreDimension) {
  const Dataset nested = Dataset::range(16).batch(2).batch(4);
  EXPECT_EQ(nested.batch_size(), 4);
  EXPECT_EQ(nested.cardinality(), 2);
  const Element first = *nested.begin();
  EXPECT_EQ(first[0].shape(), (Shape{4, 2}));
  EXPECT_EQ(numbers_of(first[0]), first_numbers(8));
}

TEST(BatchDataset, OfElementsWithoutElementsKeepsTheShape) {
  const Dataset dataset = Dataset::from_tensor_slices({Tensor::zeros({3, 0, 2})});
  EXPECT_EQ((*dataset.batch(3).begin())[0].shape(), (Shape{3, 0, 2}));
}

Dataset elements(std::vector<Element> list) {
  return Dataset::from_generator([list](std::uint64_t) {
    return [list, i = std::size_t{0}]() mutable -> std::optional<Element> {
      if (i == list.size()) return std::nullopt;
      return list[i++];
    };
  });
}

TEST(BatchDataset, RefusesElementsThatDiffer) {
  const Element a({Tensor::zeros({2}), Tensor::zeros({2, 3})});
  expect_error(
      ErrorCode::kInvalidArgument, {"Dataset::batch", "'labels'", "[2, 3]", "[2, 4]", "element 1"},
      [&] {
        rows_of(elements({a, Element({Tensor::zeros({2}), Tensor::zeros({2, 4})})}).batch(2));
      });
  expect_error(ErrorCode::kInvalidArgument, {"'features'", "float32", "int64"}, [&] {
    rows_of(elements({a, Element({Tensor::zeros({2}, DType::kInt64), Tensor::zeros({2, 3})})})
                .batch(2));
  });
  expect_error(ErrorCode::kInvalidArgument, {"[features, labels]", "[features]"}, [&] {
    rows_of(elements({a, Element({Tensor::zeros({2})})}).batch(2));
  });
  expect_error(ErrorCode::kInvalidArgument, {"device", "cpu:0", "cpu:1"}, [&] {
    rows_of(elements({a, a.to(Device{DeviceType::kCpu, 1})}).batch(2));
  });
}

TEST(BatchDataset, RefusesASizeBelowOne) {
  for (std::int64_t size : {0, -3}) {
    expect_error(ErrorCode::kInvalidArgument, {"Dataset::batch", "at least 1", concat(size)},
                 [&] { Dataset::range(4).batch(size); });
  }
}

TEST(BatchSize, BatchSetsItWithAndWithoutDropRemainder) {
  EXPECT_EQ(Dataset::range(8).batch_size(), std::nullopt);
  EXPECT_EQ(Dataset::range(8).batch(4).batch_size(), 4);
  EXPECT_EQ(Dataset::range(8).batch(4, kDropRemainder).batch_size(), 4);
  // The last batch has 2 rows; the size is that of a full batch.
  EXPECT_EQ(Dataset::range(10).batch(4).batch_size(), 4);
}

TEST(BatchSize, SelectionAndReorderingKeepIt) {
  const Dataset batches = Dataset::range(32).batch(4);
  EXPECT_EQ(batches.take(5).batch_size(), 4);
  EXPECT_EQ(batches.skip(5).batch_size(), 4);
  EXPECT_EQ(batches.shard(2, 1).batch_size(), 4);
  EXPECT_EQ(batches.shuffle(3, 1).batch_size(), 4);
  EXPECT_EQ(batches.repeat(2).batch_size(), 4);
  EXPECT_EQ(batches.prefetch(2).batch_size(), 4);
  EXPECT_EQ(batches.cache().batch_size(), 4);
  EXPECT_EQ(batches.shuffle(3, 1).repeat().prefetch(1).take(2).batch_size(), 4);
}

TEST(BatchSize, FunctionMakesItUnknown) {
  const Dataset batches = Dataset::range(32).batch(4);
  auto same = [](const Element& element) { return element; };
  EXPECT_EQ(batches.map(same).batch_size(), std::nullopt);
  EXPECT_EQ(batches.filter([](const Element&) { return true; }).batch_size(), std::nullopt);
  EXPECT_EQ(batches.map(same).batch(2).batch_size(), 2);
}

TEST(BatchSize, ZipNeedsEqualSizes) {
  const Dataset four = Dataset::range(32).batch(4);
  const Dataset eight = Dataset::range(32).batch(8);
  EXPECT_EQ(Dataset::zip({four, four}).batch_size(), 4);
  EXPECT_EQ(Dataset::zip({four, eight}).batch_size(), std::nullopt);
  EXPECT_EQ(Dataset::zip({four, Dataset::range(3)}).batch_size(), std::nullopt);
  EXPECT_EQ(four.concatenate(four).batch_size(), 4);
  EXPECT_EQ(four.concatenate(eight).batch_size(), std::nullopt);
}

TEST(BatchSize, APartialBatchIsForeseenThroughDecorators) {
  const Dataset ragged = Dataset::range(10).batch(4);
  EXPECT_TRUE(ragged.repeat(2).prefetch(1).source().may_end_in_partial_batch());
  EXPECT_TRUE(Dataset::range(8).batch(4).concatenate(ragged).source().may_end_in_partial_batch());
  EXPECT_FALSE(Dataset::range(10).repeat().batch(4).source().may_end_in_partial_batch());
}

}  // namespace batch_test
}  // namespace tutti
