// Tests the elements, batches and sources of datasets, and that a pass resumed at any position
// continues exactly as the uninterrupted pass does.
// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include "tests/data/dataset_values.h"
#include "tutti/data/augment.h"
#include "tutti/data/element.h"
#include "tutti/data/records.h"
#include "tutti/tensor/ops/random_ops.h"

namespace tutti::testing::sources_test {

Element batch_of(std::int64_t rows) {
  std::vector<std::int64_t> features, labels;
  for (std::int64_t i = 0; i < rows; ++i) {
    features.insert(features.end(), {2 * i, 2 * i + 1});
    labels.push_back(100 + i);
  }
  return Element({Tensor::from(Shape{rows, 2}, features), Tensor::from(Shape{rows}, labels)});
}

TEST(Element, HasDefaultNamesAndFindsComponentsByName) {
  const Tensor x = Tensor::zeros({1});
  EXPECT_THAT(Element({x}).names(), ElementsAre("features"));
  EXPECT_THAT(Element({x, x, x, x, x}).names(),
              ElementsAre("features", "labels", "sample_weight", "component_3", "component_4"));
  EXPECT_EQ(Element().size(), 0u);
  const Element element({Tensor(1.0f), Tensor(2.0f)}, {"left", "right"});
  EXPECT_EQ(element.at("right").item(), 2.0f);
  EXPECT_EQ(element[0].item(), 1.0f);
  EXPECT_TRUE(element.has("left"));
  EXPECT_FALSE(element.has("labels"));
  EXPECT_ERROR(element.at("labels"), kNotFound, "'labels'", "left, right");
  EXPECT_ERROR(element[2], kOutOfRange, "component 2", "left, right");
  const Tensor one(1.0f);
  EXPECT_INVALID(Element({one, one}, {"a"}), "1 names for 2 components");
  EXPECT_INVALID(Element({one, one}, {"a", "a"}), "'a' occurs twice");
  EXPECT_INVALID(Element({one, Tensor()}), "component 1", "undefined");
}

TEST(Element, RowCountIsCommonFirstDimension) {
  EXPECT_EQ(batch_of(3).rows(), 3);
  EXPECT_EQ(batch_of(0).rows(), 0);
  EXPECT_ERROR(Element({Tensor::zeros({2}), Tensor(1.0f)}).rows(), kFailedPrecondition,
               "not batched", "'labels'", "scalar");
  EXPECT_ERROR(Element({Tensor::zeros({2}), Tensor::zeros({3})}).rows(), kFailedPrecondition,
               "not batched", "'labels'", "[3]", "2 rows");
  EXPECT_ERROR(Element().rows(), kFailedPrecondition, "at least one component, got none");
}

TEST(Element, RowsOfNestedSlicesKeepGlobalBatchPosition) {
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

TEST(Element, SliceRowsSharesStorage) {
  const Element batch = batch_of(4);
  const Element slice = batch.slice_rows(1, 2);
  EXPECT_EQ(slice[1].bytes().data(), batch[1].bytes().data() + sizeof(std::int64_t));
  const Element none = batch.slice_rows(4, 0);
  EXPECT_EQ(none.rows(), 0);
  EXPECT_EQ(none.global_rows(), 4);
  EXPECT_EQ(none.first_row(), 4);
  for (const auto& wrong : {std::pair{-1, 2}, {0, 5}, {3, 2}, {5, 0}, {0, -1}}) {
    EXPECT_INVALID(batch.slice_rows(wrong.first, wrong.second), "slice_rows", "0 .. 4");
  }
}

TEST(Element, CopyToDeviceKeepsNamesAndGlobalBatchPosition) {
  const Element moved = batch_of(4).slice_rows(1, 2).to(Device{DeviceType::kCpu, 3});
  EXPECT_EQ(moved[0].device().index, 3);
  EXPECT_EQ(moved[1].device().index, 3);
  EXPECT_EQ(moved.global_rows(), 4);
  EXPECT_EQ(moved.first_row(), 1);
  EXPECT_THAT(moved.names(), ElementsAre("features", "labels"));
}

TEST(Batch, UnpacksFeaturesLabelsAndSampleWeights) {
  const Batch batch(batch_of(3).slice_rows(1, 2));
  auto [x, y] = batch;
  EXPECT_EQ(x.shape(), (Shape{2, 2}));
  EXPECT_THAT(numbers_of(y), ElementsAre(101, 102));
  EXPECT_EQ(batch.rows(), 2);
  EXPECT_EQ(batch.global_rows(), 3);
  EXPECT_FALSE(batch.sample_weight().defined());
  const Batch unlabeled(Element({Tensor::zeros({2})}));
  EXPECT_FALSE(unlabeled.has_labels());
  EXPECT_ERROR(unlabeled.labels(), kNotFound, "at least 2 components", "features");
  const Tensor part = Tensor::zeros({2});
  EXPECT_TRUE(Batch(Element({part, part, part})).sample_weight().defined());
  EXPECT_FALSE(Batch(Element({part, part, part}, {"a", "b", "c"})).sample_weight().defined());
}

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
  EXPECT_INVALID(Dataset::from_tensor_slices({int_tensor({3, 2}), int_tensor({4})}), "[3, 2]",
                 "[4]", "component 1");
  EXPECT_INVALID(Dataset::from_tensor_slices({Tensor(1.0f)}), "[]");
  EXPECT_INVALID(Dataset::from_tensor_slices({}), "got none");
  const Dataset dataset = Dataset::from_tensor_slices({int_tensor({0, 2})});
  EXPECT_EQ(dataset.cardinality(), 0);
  EXPECT_THAT(rows_of(dataset), IsEmpty());
}

TEST(Dataset, FromTensorsCanBeRepeatedAndBatched) {
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
  EXPECT_INVALID(Dataset::range(0, 5, 0), "step", "got 0");
}

TEST(Dataset, RangeSkipsInConstantTime) {
  auto numbers = Dataset::range(INT64_MAX).iterate();
  numbers->skip(1'000'000'000'000);
  EXPECT_EQ((*numbers->next())[0].item_int(), 1'000'000'000'000);
  numbers->skip(INT64_MAX);
  EXPECT_EQ(numbers->next(), std::nullopt);
}

TEST(Dataset, FromGeneratorRestartsForEachPass) {
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
  EXPECT_INVALID(Dataset::from_generator(nullptr), "from_generator");
  const Dataset dataset =
      Dataset::from_generator([](std::uint64_t) { return Dataset::Generator(); });
  EXPECT_INVALID(dataset.iterate(), "from_generator");
}

TEST(Dataset, ZipEndsWithShortestDataset) {
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
  EXPECT_INVALID(Dataset::zip({}), "Dataset::zip", "none");
}

TEST(Dataset, ZipKeepsUniqueNames) {
  auto named = [](const char* name) {
    return Dataset::range(2).map([name](const Element& e) { return Element({e[0]}, {name}); });
  };
  EXPECT_THAT(Dataset::zip({named("a"), named("b")}).begin()->names(), ElementsAre("a", "b"));
  EXPECT_THAT(Dataset::zip({named("a"), named("a")}).begin()->names(),
              ElementsAre("features", "labels"));
}

TEST(Dataset, ConcatenateYieldsDatasetsInOrderAndRefusesDifferentTypes) {
  const Dataset both = Dataset::range(2).concatenate(Dataset::range(10, 13));
  EXPECT_THAT(scalars_of(both), ElementsAre(0, 1, 10, 11, 12));
  EXPECT_EQ(both.cardinality(), 5);
  auto elements = both.iterate();
  elements->skip(3);
  EXPECT_EQ(drain(*elements), (Rows{{11}, {12}}));
  EXPECT_EQ(Dataset::range(2).repeat().concatenate(Dataset::range(2)).cardinality(), kInfinite);
  const Dataset two = Dataset::from_tensor_slices({int_tensor({2}), int_tensor({2})});
  EXPECT_INVALID(rows_of(Dataset::range(2).concatenate(two)), "concatenate",
                 "features int64 of rank 0", "labels int64 of rank 0");
  const Dataset floats = Dataset::from_tensor_slices({Tensor::zeros({2})});
  EXPECT_INVALID(rows_of(Dataset::range(2).concatenate(floats)), "features int64",
                 "features float32");
}

/// Returns a dataset of documents, each given as its list of tokens.
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

TEST(PackDataset, PacksTokensIntoRows) {
  EXPECT_THAT(rows_of(kDocuments.pack(2)), ElementsAre(ElementsAre(1, 2), ElementsAre(3, 4),
                                                       ElementsAre(5, 6), ElementsAre(7, 8)));
  EXPECT_THAT(rows_of(kDocuments.pack(9)), ElementsAre(ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9)));
  EXPECT_THAT(rows_of(kDocuments.pack(10)), IsEmpty());
  EXPECT_THAT(
      rows_of(kDocuments.pack(4, {.end = 0})),
      ElementsAre(ElementsAre(1, 2, 3, 0), ElementsAre(0, 4, 0, 5), ElementsAre(6, 7, 8, 9)));
  const Dataset rows = Dataset::from_tensors({Tensor::from<std::int32_t>({3}, {1, 2, 3})}).pack(3);
  EXPECT_EQ((*rows.begin())[0].dtype(), DType::kInt64);
  EXPECT_THAT(rows_of(rows), ElementsAre(ElementsAre(1, 2, 3)));
}

TEST(PackDataset, SupportsOverlappingWindowsAndNextTokenLabels) {
  EXPECT_THAT(rows_of(documents({{1, 2, 3, 4}}).pack(3, {.shift = 1})),
              ElementsAre(ElementsAre(1, 2, 3), ElementsAre(2, 3, 4)));
  // The shift exceeds the length of a window. In the second case, it skips whole documents.
  EXPECT_THAT(rows_of(kDocuments.pack(2, {.shift = 4})),
              ElementsAre(ElementsAre(1, 2), ElementsAre(5, 6)));
  EXPECT_THAT(rows_of(documents({{1}, {2}, {3}, {4}, {5}, {6}, {7}}).pack(1, {.shift = 3})),
              ElementsAre(ElementsAre(1), ElementsAre(4), ElementsAre(7)));
  const Dataset rows = kDocuments.pack(3, {.next_as_labels = true});
  std::vector<std::vector<std::int64_t>> labels;
  for (const Element& row : rows) labels.push_back(numbers_of(row.at("labels")));
  EXPECT_THAT(rows_of(rows), ElementsAre(ElementsAre(1, 2, 3), ElementsAre(4, 5, 6)));
  EXPECT_THAT(labels, ElementsAre(ElementsAre(2, 3, 4), ElementsAre(5, 6, 7)));
  for (const Element& batch : rows.batch(2)) EXPECT_EQ(batch.at("labels").shape(), (Shape{2, 3}));
}

TEST(PackDataset, ReportsCardinalityAndRefusesInvalidInput) {
  EXPECT_EQ(kDocuments.pack(2).cardinality(), std::nullopt);
  EXPECT_EQ(kDocuments.repeat().pack(2).cardinality(), std::nullopt);
  EXPECT_EQ(Dataset::range(4).batch(2).repeat().pack(2).cardinality(), kInfinite);
  EXPECT_EQ(Dataset::range(4).batch(2).pack(2).batch_size(), std::nullopt);
  EXPECT_EQ(Dataset::range(4).batch(2).pack(2).source().batch_depth(), 0);
  EXPECT_INVALID(kDocuments.pack(0, {.shift = 1}), "Dataset::pack", "got 0 and 1");
  EXPECT_INVALID(rows_of(Dataset::range(3).pack(2)),
                 "a vector [n] of int64 or int32, got 1 component(s)", "int64 []");
  EXPECT_INVALID(rows_of(Dataset::from_tensors({Tensor::zeros({3}), Tensor::zeros({3})}).pack(2)),
                 "got 2 component(s)");
  EXPECT_INVALID(rows_of(Dataset::from_tensors({Tensor::zeros({3})}).pack(2)), "float32 [3]");
}

Element twice(const Element& element) { return Element({number(2 * number_in(element))}); }

Element plus_random(const Element& element, const SampleRandom& random) {
  const auto thousandths = static_cast<std::int64_t>(random.stream(0).below(0, 1000));
  return Element({number(1000 * number_in(element) + thousandths)});
}

struct Pipeline {
  const char* name;
  std::function<Dataset()> make;
};

std::vector<Pipeline> pipelines() {
  const Dataset base = Dataset::range(11);
  return {
      {"Range", [=] { return base; }},
      {"Slices",
       [] {
         return Dataset::from_tensor_slices({Tensor::full({5, 2}, 3.0)});
       }},
      {"Shuffled", [=] { return base.shuffle(4, 7); }},
      {"ShuffledAndBatched", [=] { return base.shuffle(11, 7).batch(3); }},
      {"BatchedDroppingRemainder",
       [=] { return base.batch(3, BatchOptions{.drop_remainder = true}); }},
      {"BatchedThenShuffled", [=] { return base.batch(2).shuffle(3, 1); }},
      {"Repeated", [=] { return base.shuffle(11, 7).repeat(2).batch(4); }},
      {"Sharded", [=] { return base.shard(3, 1); }},
      {"ShardedShuffle", [=] { return base.shuffle(5, 1).shard(2, 1).batch(2); }},
      {"Mapped", [=] { return base.map(twice).take(6); }},
      {"MappedInParallel",
       [=] { return base.shuffle(4, 2).map(twice, MapOptions{.num_parallel_calls = 3}); }},
      {"MappedWithRandomNumbers",
       [=] {
         set_random_seed(3);  // as at the start of a new process
         const auto draw = [](std::int64_t below) {
           return static_cast<std::int64_t>(random_uniform({}).item() * static_cast<float>(below));
         };
         return base.shuffle(4, 2)
             .filter([=](const Element&) { return draw(4) > 0; })
             .map(
                 [=](const Element& e) {
                   return Element({number(1000 * number_in(e) + draw(1000))});
                 },
                 {.num_parallel_calls = 2})
             .prefetch(1);
       }},
      {"Augmented", [=] { return augment(base.shuffle(4, 2), plus_random, {.seed = 3}).batch(2); }},
      {"AugmentedInParallel",
       [=] {
         return augment(base, plus_random, {.seed = 3, .num_parallel_calls = 3})
             .repeat(2)
             .prefetch(2);
       }},
      {"MixedUp",
       [=] {
         const auto thousands = [](const Element& e) {
           return Element({Tensor::full({2}, 1000.0 * static_cast<double>(number_in(e)))});
         };
         return mixup(base.map(thousands).batch(3), {.alpha = 1.0, .seed = 4});
       }},
      {"Filtered",
       [=] { return base.filter([](const Element& e) { return number_in(e) % 3 != 0; }); }},
      {"Zipped",
       [=] {
         return Dataset::zip({base.shuffle(3, 3), base.skip(4)});
       }},
      {"Concatenated", [=] { return base.take(4).concatenate(base.shuffle(9, 4)).batch(4); }},
      {"Interleaved",
       [=] {
         return base.interleave(
             [](const Element& e) {
               return Dataset::range(10 * number_in(e), 10 * number_in(e) + number_in(e) % 4)
                   .shuffle(3, 5);
             },
             InterleaveOptions{.cycle_length = 3, .block_length = 2});
       }},
      {"FlatMapped",
       [=] {
         return base.flat_map([](const Element& e) { return Dataset::range(number_in(e)); });
       }},
      {"Unbatched", [=] { return base.shuffle(5, 2).batch(4).unbatch(); }},
      {"Enumerated", [=] { return base.shuffle(5, 2).enumerate(3); }},
      {"TakenWhile",
       [=] { return base.take_while([](const Element& e) { return number_in(e) < 6; }); }},
      {"PaddedBatches", [=] { return base.shuffle(5, 2).padded_batch(3); }},
      {"AutoShardedByElements",
       [=] { return auto_shard(base.shuffle(5, 2), 3, 1, AutoShardPolicy::kData); }},
      {"BatchesAutoShardedByElements",
       [=] { return auto_shard(base.shuffle(5, 2).batch(2), 3, 1, AutoShardPolicy::kData); }},
      {"AutoShardedByFiles",
       [] {
         std::vector<std::string> paths;
         for (int f = 0; f < 4; ++f) {
           paths.push_back(concat(empty_folder(concat("_", f)), "/file"));
           std::string bytes(10, '\0');
           std::iota(bytes.begin(), bytes.end(), static_cast<char>(10 * f));
           write_bytes(paths.back(), bytes);
         }
         const Dataset bytes = fixed_length_record_dataset(paths, 1);
         return auto_shard(bytes.shuffle(8, 5).batch(3), 3, 1, AutoShardPolicy::kFile);
       }},
      {"Packed",
       [=] {
         return base.batch(4)
             .pack(3, {.shift = 2, .end = 99, .next_as_labels = true})
             .shuffle(3, 2);
       }},
      {"Prefetched", [=] { return base.shuffle(11, 8).batch(2).prefetch(2); }},
      {"Cached", [=] { return base.cache().shuffle(11, 8); }},
      {"Generated",
       [] {
         return Dataset::from_generator([](std::uint64_t epoch) {
           return [epoch, i = std::uint64_t{0}]() mutable -> std::optional<Element> {
             if (i == 4 + epoch) return std::nullopt;
             return Element({number(static_cast<std::int64_t>(100 * epoch + i++))});
           };
         });
       }},
  };
}

/// Returns everything `iterator` yields until epoch `end`; an empty row marks the end of an epoch.
Rows run_to(ResumableIterator& iterator, std::uint64_t end) {
  Rows rows;
  while (iterator.position().epoch < end) {
    auto element = iterator.next();
    rows.push_back(element ? numbers_of((*element)[0]) : std::vector<std::int64_t>{});
  }
  return rows;
}

class Resuming : public TestWithParam<Pipeline> {};

TEST_P(Resuming, AtAnyPositionMatchesUninterruptedRun) {
  constexpr std::uint64_t kEpochs = 3;
  ResumableIterator straight(GetParam().make());
  std::vector<DatasetPosition> positions = {straight.position()};
  Rows all;
  while (straight.position().epoch < kEpochs) {
    auto element = straight.next();
    all.push_back(element ? numbers_of((*element)[0]) : std::vector<std::int64_t>{});
    positions.push_back(straight.position());
  }
  ASSERT_GT(all.size(), 2 * kEpochs);
  for (std::size_t i = 0; i < positions.size(); ++i) {
    // Converts the position to JSON text and back, as in a checkpoint, and creates the dataset
    // again, as in a new process.
    const Json saved = Json::parse(positions[i].to_json().dump());
    ResumableIterator resumed(GetParam().make());
    resumed.restore(DatasetPosition::from_json(saved));
    EXPECT_EQ(resumed.position(), positions[i]);
    EXPECT_EQ(run_to(resumed, kEpochs),
              Rows(all.begin() + static_cast<std::ptrdiff_t>(i), all.end()))
        << "position " << i;
  }
}

// Rebuilds a pipeline as sharding does, but keeps its sources.
SourcePtr rebuilt(const SourcePtr& source) {
  std::vector<SourcePtr> inputs = source->inputs();
  if (inputs.empty()) return source;
  for (SourcePtr& input : inputs) input = rebuilt(input);
  return source->with_inputs(std::move(inputs));
}

TEST_P(Resuming, RebuiltPipelineYieldsSameElements) {
  const Dataset dataset = GetParam().make();
  const Dataset again(rebuilt(dataset.shared_source()));
  EXPECT_EQ(again.cardinality(), dataset.cardinality());
  EXPECT_EQ(again.batch_size(), dataset.batch_size());
  for (std::uint64_t epoch : {0u, 1u}) {
    EXPECT_EQ(rows_of(again, epoch), rows_of(dataset, epoch));
  }
}

INSTANTIATE_TEST_SUITE_P(Pipelines, Resuming, ValuesIn(pipelines()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(ResumableIterator, CountsElementsAndEpochs) {
  ResumableIterator iterator(Dataset::range(2));
  EXPECT_EQ(iterator.position(), (DatasetPosition{0, 0}));
  EXPECT_TRUE(iterator.next());
  EXPECT_EQ(iterator.position(), (DatasetPosition{0, 1}));
  EXPECT_TRUE(iterator.next());
  EXPECT_EQ(iterator.position(), (DatasetPosition{0, 2}));
  EXPECT_FALSE(iterator.next());
  EXPECT_EQ(iterator.position(), (DatasetPosition{1, 0}));
  EXPECT_TRUE(iterator.next());
  iterator.next_epoch();
  EXPECT_EQ(iterator.position(), (DatasetPosition{2, 0}));
  EXPECT_EQ(number_in(*iterator.next()), 0);
}

TEST(ResumableIterator, ExceptionDoesNotAdvancePosition) {
  ResumableIterator iterator(Dataset::range(4).map([](const Element& element) -> Element {
    if (number_in(element) == 2) fail(ErrorCode::kDataLoss, "broken element");
    return element;
  }));
  iterator.next();
  iterator.next();
  EXPECT_ERROR(iterator.next(), kDataLoss, "broken element");
  EXPECT_EQ(iterator.position(), (DatasetPosition{0, 2}));
}

TEST(ResumableIterator, RefusesPositionsOutsideTheDataset) {
  ResumableIterator iterator(Dataset::range(4));
  iterator.restore({7, 4});
  EXPECT_FALSE(iterator.next());
  EXPECT_ERROR(iterator.restore({2, 5}), kOutOfRange, "position 5", "epoch 2", "0 .. 4");
  EXPECT_ERROR(iterator.restore({2, -1}), kOutOfRange, "position -1");
  EXPECT_EQ(iterator.position(), (DatasetPosition{8, 0}));
}

TEST(DatasetPosition, RefusesInvalidJson) {
  EXPECT_INVALID(DatasetPosition::from_json(Json::parse(R"({"epoch": 1})")), "elements");
  EXPECT_INVALID(DatasetPosition::from_json(Json::parse(R"({"epoch": -1, "elements": 0})")),
                 "epoch", "-1");
  EXPECT_INVALID(DatasetPosition::from_json(Json::parse(R"({"epoch": "a", "elements": 0})")), );
}

}  // namespace tutti::testing::sources_test
