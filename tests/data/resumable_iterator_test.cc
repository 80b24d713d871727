// Tests positions: a pass resumed anywhere continues like the uninterrupted one.
// SPDX-License-Identifier: Apache-2.0
#include "tests/data/resumable_iterator.h"

#include <numeric>

#include "tests/data/dataset_values.h"
#include "tutti/data/augment.h"
#include "tutti/data/records.h"
#include "tutti/tensor/ops/random_ops.h"

namespace tutti::resumable_iterator_test {

using namespace data_test;

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
      {"BatchedDropping", [=] { return base.batch(3, BatchOptions{.drop_remainder = true}); }},
      {"BatchedThenShuffled", [=] { return base.batch(2).shuffle(3, 1); }},
      {"Repeated", [=] { return base.shuffle(11, 7).repeat(2).batch(4); }},
      {"Sharded", [=] { return base.shard(3, 1); }},
      {"ShardedShuffle", [=] { return base.shuffle(5, 1).shard(2, 1).batch(2); }},
      {"Mapped", [=] { return base.map(twice).take(6); }},
      {"MappedInParallel",
       [=] { return base.shuffle(4, 2).map(twice, MapOptions{.num_parallel_calls = 3}); }},
      {"MappedAtRandom",
       [=] {
         set_random_seed(3);  // as at the start of another process
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
      {"SharedByElements",
       [=] { return auto_shard(base.shuffle(5, 2), 3, 1, AutoShardPolicy::kData); }},
      {"BatchesSharedByElements",
       [=] { return auto_shard(base.shuffle(5, 2).batch(2), 3, 1, AutoShardPolicy::kData); }},
      {"SharedByFiles",
       [] {
         std::vector<std::string> paths;
         for (int f = 0; f < 4; ++f) {
           paths.push_back(concat(thrown::empty_folder(concat("_", f)), "/file"));
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

class Resuming : public testing::TestWithParam<Pipeline> {};

TEST_P(Resuming, AtEveryPositionEqualsTheStraightRun) {
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
    // The position passes through text, as in a checkpoint; the dataset is new, as in another
    // process.
    const Json saved = Json::parse(positions[i].to_json().dump());
    ResumableIterator resumed(GetParam().make());
    resumed.restore(DatasetPosition::from_json(saved));
    EXPECT_EQ(resumed.position(), positions[i]);
    EXPECT_EQ(run_to(resumed, kEpochs),
              Rows(all.begin() + static_cast<std::ptrdiff_t>(i), all.end()))
        << "position " << i;
  }
}

// Rebuilds a pipeline as sharding does, but over the same sources.
SourcePtr rebuilt(const SourcePtr& source) {
  std::vector<SourcePtr> inputs = source->inputs();
  if (inputs.empty()) return source;
  for (SourcePtr& input : inputs) input = rebuilt(input);
  return source->with_inputs(std::move(inputs));
}

TEST_P(Resuming, RebuiltOverTheSameBeginningsYieldsTheSame) {
  const Dataset dataset = GetParam().make();
  const Dataset again(rebuilt(dataset.shared_source()));
  EXPECT_EQ(again.cardinality(), dataset.cardinality());
  EXPECT_EQ(again.batch_size(), dataset.batch_size());
  for (std::uint64_t epoch : {0u, 1u}) {
    EXPECT_EQ(data_test::rows_of(again, epoch), data_test::rows_of(dataset, epoch));
  }
}

INSTANTIATE_TEST_SUITE_P(Pipelines, Resuming, testing::ValuesIn(pipelines()),
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

TEST(ResumableIterator, AnExceptionLeavesThePositionAlone) {
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

TEST(DatasetPosition, RefusesJsonThatIsNoPosition) {
  EXPECT_INVALID(DatasetPosition::from_json(Json::parse(R"({"epoch": 1})")), "elements");
  EXPECT_INVALID(DatasetPosition::from_json(Json::parse(R"({"epoch": -1, "elements": 0})")),
                 "epoch", "-1");
  EXPECT_INVALID(DatasetPosition::from_json(Json::parse(R"({"epoch": "a", "elements": 0})")), );
}

}  // namespace tutti::resumable_iterator_test
