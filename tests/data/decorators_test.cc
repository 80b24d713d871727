// Tests dataset transformations: batching, repeating, shuffling, filtering, mapping, interleaving.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tests/data/dataset_values.h"
#include "tutti/core/random.h"
#include "tutti/data/records.h"

namespace tutti::testing::decorators_test {

TEST(RepeatDataset, RepeatsCountTimesOrIndefinitely) {
  EXPECT_THAT(scalars_of(Dataset::range(2).repeat(3)), ElementsAre(0, 1, 0, 1, 0, 1));
  EXPECT_THAT(scalars_of(Dataset::range(2).repeat().take(5)), ElementsAre(0, 1, 0, 1, 0));
  EXPECT_THAT(scalars_of(Dataset::range(2).repeat(0)), IsEmpty());
  EXPECT_EQ(Dataset::range(2).repeat(3).cardinality(), 6);
  EXPECT_EQ(Dataset::range(2).repeat().cardinality(), kInfinite);
  EXPECT_EQ(Dataset::range(2).repeat(0).cardinality(), 0);
  EXPECT_EQ(Dataset::range(2).repeat().repeat(2).cardinality(), kInfinite);
  EXPECT_INVALID(Dataset::range(2).repeat(-2), "Dataset::repeat", "-2");
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

TEST(ShardDataset, YieldsEveryNthElementFromIndex) {
  EXPECT_THAT(scalars_of(Dataset::range(10).shard(3, 0)), ElementsAre(0, 3, 6, 9));
  EXPECT_THAT(scalars_of(Dataset::range(10).shard(3, 1)), ElementsAre(1, 4, 7));
  EXPECT_THAT(scalars_of(Dataset::range(2).shard(5, 3)), IsEmpty());
  for (std::int64_t length = 0; length < 12; ++length) {
    for (std::int64_t index = 0; index < 4; ++index) {
      const Dataset shard = Dataset::range(length).shard(4, index);
      EXPECT_EQ(shard.cardinality(), static_cast<std::int64_t>(scalars_of(shard).size()));
    }
  }
  for (const auto& wrong : {std::pair{0, 0}, {3, 3}, {3, -1}, {-1, 0}}) {
    EXPECT_INVALID(Dataset::range(4).shard(wrong.first, wrong.second), "Dataset::shard",
                   "0 <= index < count");
  }
}

TEST(TakeAndSkip, YieldRequestedRange) {
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
  EXPECT_INVALID(five.take(-2), "Dataset::take", "-2");
  EXPECT_INVALID(five.skip(-2), "Dataset::skip", "-2");
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

TEST(MapDataset, AppliesFunction) {
  const Dataset squares = Dataset::range(4).map([](const Element& element) {
    return Element({number(number_in(element) * number_in(element))});
  });
  EXPECT_THAT(scalars_of(squares), ElementsAre(0, 1, 4, 9));
  EXPECT_EQ(squares.cardinality(), 4);
  EXPECT_INVALID(Dataset::range(4).map(nullptr), "Dataset::map");
  EXPECT_INVALID(Dataset::range(4).map([](const Element& e) { return e; },
                                       MapOptions{.num_parallel_calls = 0}),
                 "num_parallel_calls", "got 0");
}

TEST(FilterDataset, KeepsAcceptedElements) {
  const Dataset even =
      Dataset::range(7).filter([](const Element& element) { return number_in(element) % 2 == 0; });
  EXPECT_THAT(scalars_of(even), ElementsAre(0, 2, 4, 6));
  EXPECT_EQ(even.cardinality(), std::nullopt);
  EXPECT_EQ(even.batch(2).cardinality(), std::nullopt);
  auto elements = even.iterate();
  elements->skip(2);
  EXPECT_EQ(drain(*elements), (Rows{{4}, {6}}));
  EXPECT_INVALID(Dataset::range(4).filter(nullptr), "Dataset::filter");
}

Dataset repeated(const Element& element, std::int64_t count) {
  return Dataset::from_tensors({element[0]}).repeat(count);
}

// Example from the documentation of tf.data.Dataset.interleave.
TEST(InterleaveDataset, FollowsDocumentedOrderAndSkipsEmptyDatasets) {
  const Dataset dataset =
      Dataset::range(1, 6).interleave([](const Element& e) { return repeated(e, 6); },
                                      InterleaveOptions{.cycle_length = 2, .block_length = 4});
  EXPECT_THAT(scalars_of(dataset), ElementsAre(1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 2, 2, 3, 3, 3, 3, 4, 4,
                                               4, 4, 3, 3, 4, 4, 5, 5, 5, 5, 5, 5));
  EXPECT_EQ(dataset.cardinality(), std::nullopt);
  auto up_to = [](const Element& e) { return repeated(e, number_in(e) % 2); };
  EXPECT_THAT(scalars_of(Dataset::range(6).interleave(up_to, InterleaveOptions{.cycle_length = 9})),
              ElementsAre(1, 3, 5));
  EXPECT_THAT(scalars_of(Dataset::range(0).interleave(up_to)), IsEmpty());
}

TEST(InterleaveDataset, RefusesInvalidOptions) {
  EXPECT_INVALID(Dataset::range(1).interleave([](const Element& e) { return repeated(e, 1); },
                                              InterleaveOptions{.cycle_length = 0}),
                 "Dataset::interleave", "got 0 and 1");
  EXPECT_INVALID(Dataset::range(1).interleave(nullptr), "Dataset::interleave");
  EXPECT_INVALID(Dataset::range(1).flat_map(nullptr), "Dataset::flat_map");
}

TEST(FlatMapDataset, ConcatenatesDatasetsInOrder) {
  const Dataset dataset =
      Dataset::range(4).flat_map([](const Element& e) { return repeated(e, number_in(e)); });
  EXPECT_THAT(scalars_of(dataset), ElementsAre(1, 2, 2, 3, 3, 3));
}

TEST(UnbatchDataset, InvertsBatch) {
  EXPECT_EQ(scalars_of(Dataset::range(10).batch(4).unbatch()), first_numbers(10));
  EXPECT_EQ(rows_of(Dataset::range(8).batch(2).batch(2).unbatch()),
            (Rows{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(Dataset::range(8).batch(2).unbatch().batch_size(), std::nullopt);
  EXPECT_ERROR(rows_of(Dataset::range(3).unbatch()), kFailedPrecondition, "not batched");
}

TEST(TakeWhileDataset, EndsAtFirstRejectedElement) {
  const Dataset dataset =
      Dataset::range(9).take_while([](const Element& e) { return number_in(e) % 4 != 3; });
  EXPECT_THAT(scalars_of(dataset), ElementsAre(0, 1, 2));
  EXPECT_EQ(dataset.cardinality(), std::nullopt);
  EXPECT_INVALID(Dataset::range(1).take_while(nullptr), "Dataset::take_while");
}

TEST(EnumerateDataset, PrependsIndexComponent) {
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

TEST(PaddedBatchDataset, PadsToLargestElementOfBatch) {
  const Dataset dataset = growing(3).padded_batch(2);
  EXPECT_EQ(rows_of(dataset), (Rows{{1, 1, 0, 0, 2, 2, 2, 2}, {3, 3, 3, 3, 3, 3}}));
  EXPECT_EQ(dataset.cardinality(), 2);
  EXPECT_EQ(dataset.batch_size(), 2);
  EXPECT_EQ(rows_of(growing(3).padded_batch(2, {.drop_remainder = true})).size(), 1u);
  EXPECT_EQ((*dataset.iterate()->next())[0].shape(), (Shape{2, 2, 2}));
}

TEST(PaddedBatchDataset, PadsToRequestedShapeWithPaddingValue) {
  PaddedBatchOptions options;
  options.padded_shapes = {{kLargest, 3}};
  options.padding_values = {9};
  EXPECT_EQ(rows_of(growing(2).padded_batch(2, options)),
            (Rows{{1, 1, 9, 9, 9, 9, 2, 2, 9, 2, 2, 9}}));
  options.padded_shapes = {{1, 2}};
  EXPECT_INVALID(rows_of(growing(2).padded_batch(2, options)), "Dataset::padded_batch",
                 "'features'", "at most 1 in dimension 0", "got 2");
  options.padded_shapes = {{1}};
  EXPECT_INVALID(rows_of(growing(2).padded_batch(2, options)), "rank 2, got [1]");
}

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

TEST(BatchDataset, RepeatedBatchingAddsLeadingDimension) {
  const Dataset nested = Dataset::range(16).batch(2).batch(4);
  EXPECT_EQ(nested.batch_size(), 4);
  EXPECT_EQ(nested.cardinality(), 2);
  const Element first = *nested.begin();
  EXPECT_EQ(first[0].shape(), (Shape{4, 2}));
  EXPECT_EQ(numbers_of(first[0]), first_numbers(8));
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

TEST(BatchDataset, RefusesElementsOfDifferentShapeOrDType) {
  const Element a({Tensor::zeros({2}), Tensor::zeros({2, 3})});
  EXPECT_INVALID(
      rows_of(elements({a, Element({Tensor::zeros({2}), Tensor::zeros({2, 4})})}).batch(2)),
      "Dataset::batch", "'labels'", "[2, 3]", "[2, 4]", "element 1");
  EXPECT_INVALID(
      rows_of(elements({a, Element({Tensor::zeros({2}, DType::kInt64), Tensor::zeros({2, 3})})})
                  .batch(2)),
      "'features'", "float32", "int64");
  EXPECT_INVALID(rows_of(elements({a, Element({Tensor::zeros({2})})}).batch(2)),
                 "[features, labels]", "[features]");
  EXPECT_INVALID(rows_of(elements({a, a.to(Device{DeviceType::kCpu, 1})}).batch(2)), "device",
                 "cpu:0", "cpu:1");
}

TEST(BatchDataset, RefusesSizeBelowOne) {
  for (std::int64_t size : {0, -3}) {
    EXPECT_INVALID(Dataset::range(4).batch(size), "Dataset::batch", ">= 1", concat(size));
  }
}

TEST(BatchSize, ReportsFullBatchSizeAndPartialLastBatch) {
  EXPECT_EQ(Dataset::range(8).batch_size(), std::nullopt);
  EXPECT_EQ(Dataset::range(8).batch(4).batch_size(), 4);
  EXPECT_EQ(Dataset::range(8).batch(4, kDropRemainder).batch_size(), 4);
  // The last batch has 2 rows; batch_size() reports full batches.
  EXPECT_EQ(Dataset::range(10).batch(4).batch_size(), 4);
  const Dataset ragged = Dataset::range(10).batch(4);
  EXPECT_TRUE(ragged.repeat(2).prefetch(1).source().may_end_in_partial_batch());
  EXPECT_TRUE(Dataset::range(8).batch(4).concatenate(ragged).source().may_end_in_partial_batch());
  EXPECT_FALSE(Dataset::range(10).repeat().batch(4).source().may_end_in_partial_batch());
}

TEST(BatchSize, IsKeptByTakeShuffleAndRepeatButUnknownAfterMap) {
  const Dataset batches = Dataset::range(32).batch(4);
  EXPECT_EQ(batches.take(5).batch_size(), 4);
  EXPECT_EQ(batches.skip(5).batch_size(), 4);
  EXPECT_EQ(batches.shard(2, 1).batch_size(), 4);
  EXPECT_EQ(batches.shuffle(3, 1).batch_size(), 4);
  EXPECT_EQ(batches.repeat(2).batch_size(), 4);
  EXPECT_EQ(batches.prefetch(2).batch_size(), 4);
  EXPECT_EQ(batches.cache().batch_size(), 4);
  EXPECT_EQ(batches.shuffle(3, 1).repeat().prefetch(1).take(2).batch_size(), 4);
  auto same = [](const Element& element) { return element; };
  EXPECT_EQ(batches.map(same).batch_size(), std::nullopt);
  EXPECT_EQ(batches.filter([](const Element&) { return true; }).batch_size(), std::nullopt);
  EXPECT_EQ(batches.map(same).batch(2).batch_size(), 2);
}

TEST(BatchSize, IsUnknownAfterZipOfDifferentSizes) {
  const Dataset four = Dataset::range(32).batch(4);
  const Dataset eight = Dataset::range(32).batch(8);
  EXPECT_EQ(Dataset::zip({four, four}).batch_size(), 4);
  EXPECT_EQ(Dataset::zip({four, eight}).batch_size(), std::nullopt);
  EXPECT_EQ(Dataset::zip({four, Dataset::range(3)}).batch_size(), std::nullopt);
  EXPECT_EQ(four.concatenate(four).batch_size(), 4);
  EXPECT_EQ(four.concatenate(eight).batch_size(), std::nullopt);
}

using Numbers = std::vector<std::int64_t>;

TEST(Shuffle, IsAPermutationForEveryBufferSize) {
  for (std::int64_t buffer : {1, 2, 3, 7, 99, 100, 101, 1000}) {
    const Numbers order = scalars_of(Dataset::range(100).shuffle(buffer, 5));
    EXPECT_THAT(order, UnorderedElementsAreArray(first_numbers(100))) << "buffer " << buffer;
    EXPECT_EQ(order == first_numbers(100), buffer == 1) << "buffer " << buffer;
  }
}

TEST(Shuffle, OrderDependsOnSeedAndOptionallyOnEpoch) {
  const Dataset dataset = Dataset::range(100).shuffle(100, 5);
  EXPECT_EQ(scalars_of(dataset, 3), scalars_of(Dataset::range(100).shuffle(100, 5), 3));
  EXPECT_NE(scalars_of(dataset, 3), scalars_of(dataset, 4));
  EXPECT_NE(scalars_of(dataset, 3), scalars_of(Dataset::range(100).shuffle(100, 6), 3));
  const Dataset kept =
      Dataset::range(50).shuffle(20, ShuffleOptions{.seed = 2, .reshuffle_each_iteration = false});
  EXPECT_EQ(scalars_of(kept, 0), scalars_of(kept, 9));
  EXPECT_NE(scalars_of(kept, 0), first_numbers(50));
}

// When a buffer of size b yields the element at position i, it has read elements 0 .. i + b - 1.
// Therefore, no element is yielded more than b - 1 positions early.
TEST(Shuffle, MovesElementsEarlierByLessThanBufferSize) {
  constexpr std::int64_t kBuffer = 10;
  const Numbers order = scalars_of(Dataset::range(200).shuffle(kBuffer, 1));
  std::int64_t most = 0;
  for (std::size_t place = 0; place < order.size(); ++place) {
    const std::int64_t early = order[place] - static_cast<std::int64_t>(place);
    EXPECT_LT(early, kBuffer);
    most = std::max(most, early);
  }
  EXPECT_GT(most, 0);
}

// Each element is equally likely at each position: over 6000 shuffles of 4 elements, counts are
// binomial with mean 1500 and standard deviation 33.5.
TEST(Shuffle, ElementPositionsAreUniformlyDistributed) {
  const Dataset dataset = Dataset::range(4).shuffle(4, 17);
  int counts[4][4] = {};
  for (std::uint64_t epoch = 0; epoch < 6000; ++epoch) {
    const Numbers order = scalars_of(dataset, epoch);
    for (std::size_t place = 0; place < 4; ++place) ++counts[place][order[place]];
  }
  for (auto& place : counts) {
    for (int count : place) EXPECT_NEAR(count, 1500, 5 * 33.5);
  }
}

// The order must not change between versions, because a resumed run must see the same data.
TEST(Shuffle, OrderIsStableAcrossVersions) {
  RandomStream random(RandomKey{.seed = 42, .purpose = kShufflePurpose, .a = 1});
  Numbers left = first_numbers(8), expected;
  for (std::uint64_t draw = 0; !left.empty(); ++draw) {
    const auto place = static_cast<std::size_t>(random.below(draw, left.size()));
    expected.push_back(left[place]);
    left[place] = left.back();
    left.pop_back();
  }
  EXPECT_EQ(scalars_of(Dataset::range(8).shuffle(8, 42), 1), expected);
}

TEST(Shuffle, KeepsCardinalityAndRefusesEmptyBuffer) {
  EXPECT_EQ(Dataset::range(8).shuffle(3, 1).cardinality(), 8);
  EXPECT_EQ(Dataset::range(8).repeat().shuffle(3, 1).cardinality(), kInfinite);
  EXPECT_INVALID(Dataset::range(8).shuffle(0, 1), "Dataset::shuffle", ">= 1", "got 0");
  EXPECT_THAT(scalars_of(Dataset::range(0).shuffle(10, 1)), ElementsAre());
}

TEST(Shuffle, RepeatReshufflesEachPass) {
  const Dataset below = Dataset::range(20).shuffle(20, 3);
  const Numbers both = scalars_of(below.repeat(2));
  Numbers expected = scalars_of(below, 0);
  const Numbers second = scalars_of(below, 1);
  expected.insert(expected.end(), second.begin(), second.end());
  EXPECT_EQ(both, expected);
  // The next epoch of the repeated dataset begins with pass 2, which follows passes 0 and 1.
  const Numbers later = scalars_of(below.repeat(2), 1);
  EXPECT_TRUE(std::equal(later.begin(), later.begin() + 20, scalars_of(below, 2).begin()));
}

std::string folder_of(const std::vector<std::string>& names) {
  const std::string folder = empty_folder() + "/";
  for (const std::string& name : names) {
    std::filesystem::create_directories(std::filesystem::path(folder + name).parent_path());
    write_bytes(folder + name, "x");
  }
  return folder;
}

TEST(ListFiles, ReturnsMatchesInAscendingOrder) {
  const std::string f = folder_of({"b.rec", "a.rec", "B.rec", "a.txt", ".hidden.rec", "c1/x.rec",
                                   "c2/x.rec", "c3/y.rec", "a[1].rec"});
  EXPECT_THAT(list_files(f + "*.rec"),
              ElementsAre(f + "B.rec", f + "a.rec", f + "a[1].rec", f + "b.rec"));
  EXPECT_THAT(list_files(f + "?.rec"), ElementsAre(f + "B.rec", f + "a.rec", f + "b.rec"));
  EXPECT_THAT(list_files(f + "c[1-2]/*"), ElementsAre(f + "c1/x.rec", f + "c2/x.rec"));
  EXPECT_THAT(list_files(f + "c*/x.rec"), ElementsAre(f + "c1/x.rec", f + "c2/x.rec"));
  EXPECT_THAT(list_files(f + "a\\[1\\].rec"), ElementsAre(f + "a[1].rec"));
  EXPECT_THAT(list_files(f + "a.txt"), ElementsAre(f + "a.txt"));
  EXPECT_THAT(list_files(f + ".*.rec"), ElementsAre(f + ".hidden.rec"));
}

TEST(ListFiles, ShuffleDependsOnlyOnSeed) {
  const std::string f = folder_of({"0", "1", "2", "3", "4", "5", "6", "7"});
  const std::vector<std::string> sorted = list_files(f + "*");
  const std::vector<std::string> drawn = list_files(f + "*", {.shuffle = true, .seed = 1});
  EXPECT_NE(drawn, sorted);
  EXPECT_EQ(drawn, list_files(f + "*", {.shuffle = true, .seed = 1}));
  EXPECT_NE(drawn, list_files(f + "*", {.shuffle = true, .seed = 2}));
  EXPECT_THAT(drawn, UnorderedElementsAreArray(sorted));
}

TEST(ListFiles, RefusesPatternsWithoutMatches) {
  const std::string f = folder_of({"a.rec"});
  for (const std::string& pattern : {f + "*.csv", f + "a.rec/*", f + "nowhere/*", std::string()}) {
    EXPECT_ERROR(list_files(pattern), kNotFound, "no file matches '" + pattern + "'", "expected",
                 "use the full path");
  }
}

}  // namespace tutti::testing::decorators_test
