// Numbers joined and cut into rows: documents, windows over a stream, labels.
// SPDX-License-Identifier: Apache-2.0
#include "tests/data/dataset_values.h"

namespace tutti {
namespace pack_test {

using data_test::expect_error;
using data_test::numbers_of;
using data_test::rows_of;
using testing::ElementsAre;
using testing::IsEmpty;

/// Documents of these numbers.
Dataset documents(const std::vector<std::vector<std::int64_t>>& all) {
  return Dataset::from_generator([all](std::uint64_t) {
    return [all, i = std::size_t{0}]() mutable -> std::optional<Element> {
      if (i == all.size()) return std::nullopt;
      const auto& numbers = all[i++];
      return Element({Tensor::from(Shape{static_cast<std::int64_t>(numbers.size())}, numbers)});
    };
  });
}

const Dataset kDocuments = documents({{1, 2, 3}, {}, {4}, {5, 6, 7, 8, 9}});

TEST(PackDataset, JoinsElementsAndCutsThemIntoRows) {
  EXPECT_THAT(rows_of(kDocuments.pack(2)), ElementsAre(ElementsAre(1, 2), ElementsAre(3, 4),
                                                       ElementsAre(5, 6), ElementsAre(7, 8)));
  EXPECT_THAT(rows_of(kDocuments.pack(9)), ElementsAre(ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9)));
  EXPECT_THAT(rows_of(kDocuments.pack(10)), IsEmpty());
}

TEST(PackDataset, PutsANumberBehindEachDocument) {
  EXPECT_THAT(
      rows_of(kDocuments.pack(4, {.end = 0})),
      ElementsAre(ElementsAre(1, 2, 3, 0), ElementsAre(0, 4, 0, 5), ElementsAre(6, 7, 8, 9)));
}

TEST(PackDataset, MakesWindows) {
  EXPECT_THAT(rows_of(documents({{1, 2, 3, 4}}).pack(3, {.shift = 1})),
              ElementsAre(ElementsAre(1, 2, 3), ElementsAre(2, 3, 4)));
  // Further apart than they are long, over the ends of elements.
  EXPECT_THAT(rows_of(kDocuments.pack(2, {.shift = 4})),
              ElementsAre(ElementsAre(1, 2), ElementsAre(5, 6)));
  EXPECT_THAT(rows_of(documents({{1}, {2}, {3}, {4}, {5}, {6}, {7}}).pack(1, {.shift = 3})),
              ElementsAre(ElementsAre(1), ElementsAre(4), ElementsAre(7)));
}

TEST(PackDataset, LabelsAreTheNextNumbers) {
  const Dataset rows = kDocuments.pack(3, {.next_as_labels = true});
  std::vector<std::vector<std::int64_t>> labels;
  for (const Element& row : rows) labels.push_back(numbers_of(row.at("labels")));
  EXPECT_THAT(rows_of(rows), ElementsAre(ElementsAre(1, 2, 3), ElementsAre(4, 5, 6)));
  EXPECT_THAT(labels, ElementsAre(ElementsAre(2, 3, 4), ElementsAre(5, 6, 7)));
  for (const Element& batch : rows.batch(2)) EXPECT_EQ(batch.at("labels").shape(), (Shape{2, 3}));
}

TEST(PackDataset, TakesNumbersOf32Bits) {
  const Dataset rows = Dataset::from_tensors({Tensor::from<std::int32_t>({3}, {1, 2, 3})}).pack(3);
  EXPECT_EQ((*rows.begin())[0].dtype(), DType::kInt64);
  EXPECT_THAT(rows_of(rows), ElementsAre(ElementsAre(1, 2, 3)));
}

TEST(PackDataset, SaysWhatItKnows) {
  EXPECT_EQ(kDocuments.pack(2).cardinality(), std::nullopt);
  EXPECT_EQ(kDocuments.repeat().pack(2).cardinality(), std::nullopt);
  EXPECT_EQ(Dataset::range(4).batch(2).repeat().pack(2).cardinality(), kInfinite);
  EXPECT_EQ(Dataset::range(4).batch(2).pack(2).batch_size(), std::nullopt);
  EXPECT_EQ(Dataset::range(4).batch(2).pack(2).source().batch_depth(), 0);
}

TEST(PackDataset, ErrorsSayWhatIsExpected) {
  expect_error(ErrorCode::kInvalidArgument, {"Dataset::pack", "got 0 and 1"},
               [] { kDocuments.pack(0, {.shift = 1}); });
  expect_error(ErrorCode::kInvalidArgument,
               {"numbers [n] of int64 or int32, got 1 components", "int64 []"},
               [] { rows_of(Dataset::range(3).pack(2)); });
  expect_error(ErrorCode::kInvalidArgument, {"got 2 components"}, [] {
    rows_of(Dataset::from_tensors({Tensor::zeros({3}), Tensor::zeros({3})}).pack(2));
  });
  expect_error(ErrorCode::kInvalidArgument, {"float32 [3]"},
               [] { rows_of(Dataset::from_tensors({Tensor::zeros({3})}).pack(2)); });
}

}  // namespace pack_test
}  // namespace tutti
