// Elements and batches: names, rows, slices.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/element.h"

#include "tests/data/dataset_values.h"

namespace tutti {
namespace element_test {

using data_test::expect_error;
using data_test::numbers_of;
using testing::ElementsAre;

Element batch_of(std::int64_t rows) {
  std::vector<std::int64_t> features, labels;
  for (std::int64_t i = 0; i < rows; ++i) {
    features.insert(features.end(), {2 * i, 2 * i + 1});
    labels.push_back(100 + i);
  }
  return Element({Tensor::from(Shape{rows, 2}, features), Tensor::from(Shape{rows}, labels)});
}

TEST(Element, HasDefaultNamesInTfsOrder) {
  const Tensor x = Tensor::zeros({1});
  EXPECT_THAT(Element({x}).names(), ElementsAre("features"));
  EXPECT_THAT(Element({x, x, x, x, x}).names(),
              ElementsAre("features", "labels", "sample_weight", "component_3", "component_4"));
  EXPECT_EQ(Element().size(), 0u);
}

TEST(Element, FindsComponentsByNameAndNumber) {
  const Element element({Tensor(1.0f), Tensor(2.0f)}, {"left", "right"});
  EXPECT_EQ(element.at("right").item(), 2.0f);
  EXPECT_EQ(element[0].item(), 1.0f);
  EXPECT_TRUE(element.has("left"));
  EXPECT_FALSE(element.has("labels"));
  expect_error(ErrorCode::kNotFound, {"'labels'", "left, right"}, [&] { element.at("labels"); });
  expect_error(ErrorCode::kOutOfRange, {"component 2", "left, right"}, [&] { element[2]; });
}

TEST(Element, RefusesNamesThatDoNotFit) {
  const Tensor x(1.0f);
  expect_error(ErrorCode::kInvalidArgument, {"1 names for 2 components"}, [&] {
    Element({x, x}, {"a"});
  });
  expect_error(ErrorCode::kInvalidArgument, {"'a' occurs twice"}, [&] {
    Element({x, x}, {"a", "a"});
  });
  expect_error(ErrorCode::kInvalidArgument, {"component 1", "undefined"}, [&] {
    Element({x, Tensor()});
  });
}

TEST(Element, RowsAreTheCommonFirstDimension) {
  EXPECT_EQ(batch_of(3).rows(), 3);
  EXPECT_EQ(batch_of(0).rows(), 0);
  expect_error(ErrorCode::kFailedPrecondition, {"not batched", "'labels'", "scalar"}, [] {
    Element({Tensor::zeros({2}), Tensor(1.0f)}).rows();
  });
  expect_error(ErrorCode::kFailedPrecondition, {"not batched", "'labels'", "[3]", "2 rows"}, [] {
    Element({Tensor::zeros({2}), Tensor::zeros({3})}).rows();
  });
  expect_error(ErrorCode::kFailedPrecondition, {"no components"}, [] { Element().rows(); });
}

TEST(Element, SliceRowsKeepsPlaceInTheGlobalBatchThroughTwoCuts) {
  const Element batch = batch_of(10);
  EXPECT_EQ(batch.global_rows(), 10);
  EXPECT_EQ(batch.first_row(), 0);

  const Element first = batch.slice_rows(4, 5);
  EXPECT_EQ(first.rows(), 5);
  EXPECT_EQ(first.global_rows(), 10);
  EXPECT_EQ(first.first_row(), 4);

  const Element second = first.slice_rows(2, 2);
  EXPECT_EQ(second.rows(), 2);
  EXPECT_EQ(second.global_rows(), 10);
  EXPECT_EQ(second.first_row(), 6);
  EXPECT_THAT(numbers_of(second[0]), ElementsAre(12, 13, 14, 15));
  EXPECT_THAT(numbers_of(second.at("labels")), ElementsAre(106, 107));
}

TEST(Element, SliceRowsSharesStorageAndMayBeEmpty) {
  const Element batch = batch_of(4);
  const Element slice = batch.slice_rows(1, 2);
  EXPECT_EQ(slice[1].bytes().data(), batch[1].bytes().data() + sizeof(std::int64_t));
  const Element none = batch.slice_rows(4, 0);
  EXPECT_EQ(none.rows(), 0);
  EXPECT_EQ(none.global_rows(), 4);
  EXPECT_EQ(none.first_row(), 4);
}

TEST(Element, SliceRowsRefusesRowsThatAreNotThere) {
  const Element batch = batch_of(4);
  for (auto [first, count] : {std::pair{-1, 2}, {0, 5}, {3, 2}, {5, 0}, {0, -1}}) {
    expect_error(ErrorCode::kInvalidArgument, {"slice_rows", "0 .. 4"},
                 [&, first = first, count = count] { batch.slice_rows(first, count); });
  }
}

TEST(Element, ToKeepsNamesAndPlace) {
  const Element moved = batch_of(4).slice_rows(1, 2).to(Device{DeviceType::kCpu, 3});
  EXPECT_EQ(moved[0].device().index, 3);
  EXPECT_EQ(moved[1].device().index, 3);
  EXPECT_EQ(moved.global_rows(), 4);
  EXPECT_EQ(moved.first_row(), 1);
  EXPECT_THAT(moved.names(), ElementsAre("features", "labels"));
}

TEST(Batch, TakesApartIntoFeaturesAndLabels) {
  const Batch batch(batch_of(3).slice_rows(1, 2));
  auto [x, y] = batch;
  EXPECT_EQ(x.shape(), (Shape{2, 2}));
  EXPECT_THAT(numbers_of(y), ElementsAre(101, 102));
  EXPECT_EQ(batch.rows(), 2);
  EXPECT_EQ(batch.global_rows(), 3);
  EXPECT_FALSE(batch.sample_weight().defined());
}

TEST(Batch, SaysWhenThereAreNoLabels) {
  const Batch batch(Element({Tensor::zeros({2})}));
  EXPECT_FALSE(batch.has_labels());
  expect_error(ErrorCode::kNotFound, {"no second component", "features"}, [&] { batch.labels(); });
}

TEST(Batch, FindsSampleWeights) {
  const Tensor x = Tensor::zeros({2});
  EXPECT_TRUE(Batch(Element({x, x, x})).sample_weight().defined());
  EXPECT_FALSE(Batch(Element({x, x, x}, {"a", "b", "c"})).sample_weight().defined());
}

}  // namespace element_test
}  // namespace tutti
