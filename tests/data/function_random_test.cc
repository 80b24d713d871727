// Random numbers that functions of datasets draw without a key.
// SPDX-License-Identifier: Apache-2.0
#include "data/data_threads.h"

#include <set>

#include "tests/data/dataset_values.h"
#include "tutti/data/augment.h"
#include "tutti/data/dataset.h"
#include "tutti/data/records.h"
#include "tutti/tensor/ops/random_ops.h"

namespace tutti {
namespace function_random_test {

using namespace data_test;

using Numbers = std::vector<std::int64_t>;

/// 24 bits of randomness.
std::int64_t draw() {
  return static_cast<std::int64_t>(random_uniform({}).item() * static_cast<float>(1 << 24));
}

Element drawn(const Element&) { return Element({number(draw())}); }

Numbers joined(Numbers first, const Numbers& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

std::size_t num_different(const Numbers& numbers) {
  return std::set<std::int64_t>(numbers.begin(), numbers.end()).size();
}

/// The same program again: datasets count from 0.
Dataset made_first(const std::function<Dataset()>& make) {
  set_random_seed(5);
  return make();
}

TEST(RandomFunction, MapDrawsTheSameOnEveryThreadAndOtherNumbersInEachEpoch) {
  const std::vector<std::function<Dataset()>> ways = {
      [] { return Dataset::range(20).map(drawn); },
      [] { return Dataset::range(20).map(drawn).prefetch(2); },
      [] { return Dataset::range(20).map(drawn, {.num_parallel_calls = 3}); },
      [] { return Dataset::range(20).map(drawn, {.num_parallel_calls = 2}).prefetch(1); },
  };
  const Dataset plain = made_first(ways[0]);
  const Numbers zero = scalars_of(plain, 0), one = scalars_of(plain, 1);
  EXPECT_EQ(num_different(joined(zero, one)), 40u);
  for (const auto& make : ways) {
    const Dataset dataset = made_first(make);
    EXPECT_EQ(scalars_of(dataset, 1), one);
    EXPECT_EQ(scalars_of(dataset, 0), zero);
    EXPECT_EQ(scalars_of(dataset, 0), zero);  // a pass is a function of the epoch
  }
  set_random_seed(6);
  EXPECT_NE(scalars_of(ways[0](), 0), zero);
}

TEST(RandomFunction, EveryKindOfFunctionDrawsOtherNumbersInEachEpoch) {
  const auto half = [](const Element&) { return draw() < (1 << 23); };
  const auto generated = [](std::uint64_t) -> Dataset::Generator {
    return [left = 40]() mutable {
      return left-- > 0 ? std::optional(Element({number(draw())})) : std::nullopt;
    };
  };
  const auto from_its_begin = [](std::uint64_t) -> Dataset::Generator {
    return [value = draw(), left = 1]() mutable {
      return left-- > 0 ? std::optional(Element({number(value)})) : std::nullopt;
    };
  };
  const auto inner = [](const Element&) {
    return Dataset::from_tensor_slices({Tensor::from<std::int64_t>({1}, {draw()})});
  };
  const std::vector<std::function<Dataset()>> kinds = {
      [=] { return Dataset::range(40).filter(half); },
      [=] {
        return Dataset::range(40).take_while([](const Element&) { return draw() % 16 != 0; });
      },
      [=] { return Dataset::from_generator(generated); },
      [=] { return Dataset::from_generator(from_its_begin); },
      [=] { return Dataset::range(40).flat_map(inner); },
      [=] { return Dataset::range(40).interleave(inner, {.cycle_length = 4}); },
  };
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const Dataset plain = made_first(kinds[i]);
    const Dataset ahead = made_first(kinds[i]).prefetch(2);
    std::set<Numbers> passes;
    for (const std::uint64_t epoch : {0u, 1u, 2u, 3u}) {
      passes.insert(scalars_of(plain, epoch));
      EXPECT_EQ(scalars_of(ahead, epoch), scalars_of(plain, epoch)) << "kind " << i;
    }
    EXPECT_GE(passes.size(), 3u) << "kind " << i;  // two lengths of take_while() may agree
  }
}

// A source of the user's own, which draws in next().
class DrawingSource : public DatasetSource {
 public:
  class Iterator : public ElementIterator {
   public:
    std::optional<Element> next() override {
      return left_-- > 0 ? std::optional(Element({number(draw())})) : std::nullopt;
    }

   private:
    int left_ = 5;
  };
  std::unique_ptr<ElementIterator> iterate(std::uint64_t) const override {
    return std::make_unique<Iterator>();
  }
  std::optional<std::int64_t> cardinality() const override { return 5; }
};

TEST(RandomFunction, PrefetchGivesSourcesOfUsersOtherNumbersInEachEpoch) {
  const Dataset dataset = Dataset(std::make_shared<DrawingSource>()).prefetch(2);
  const Numbers zero = scalars_of(dataset, 0);
  EXPECT_EQ(num_different(joined(zero, scalars_of(dataset, 1))), 10u);
  EXPECT_EQ(scalars_of(dataset, 0), zero);
}

TEST(RandomFunction, TwoDatasetsDrawIndependentNumbers) {
  const Dataset first = Dataset::range(10).map(drawn), second = Dataset::range(10).map(drawn);
  EXPECT_EQ(num_different(joined(scalars_of(first), scalars_of(second))), 20u);
  Numbers both;
  for (const Element& pair : Dataset::zip({first, first.map(drawn)})) {
    both.push_back(pair[0].item_int());
    both.push_back(pair[1].item_int());
  }
  EXPECT_EQ(num_different(both), 20u);
}

// One dataset per file, as interleaved readers make them.
TEST(RandomFunction, DatasetsMadeOfElementsDrawIndependentNumbers) {
  const auto of_map = [](const Element&) { return Dataset::range(4).map(drawn); };
  const auto of_augment = [](const Element&) {
    return augment(Dataset::range(4),
                   [](const Element&, const SampleRandom& random) {
                     return Element({number(static_cast<std::int64_t>(random.stream(0).bits(0)))});
                   },
                   {.seed = 7});
  };
  for (const Dataset& dataset :
       {Dataset::range(5).interleave(of_map, {.cycle_length = 2}),
        Dataset::range(5).interleave(of_augment, {.cycle_length = 2}).prefetch(1),
        Dataset::range(2).flat_map([&](const Element& e) {
          return Dataset::range(3 * number_in(e), 3 * number_in(e) + 3).flat_map(of_augment);
        })}) {
    const Numbers zero = scalars_of(dataset, 0), one = scalars_of(dataset, 1);
    EXPECT_EQ(num_different(joined(zero, one)), zero.size() + one.size());
    EXPECT_EQ(scalars_of(dataset, 0), zero);
  }
}

TEST(RandomFunction, DatasetsChangeNoOtherNumberOfTheProgram) {
  const auto run = [](bool with_dataset) {
    set_random_seed(3);
    Numbers numbers = {draw()};
    if (with_dataset) (void)scalars_of(Dataset::range(5).map(drawn));
    numbers.push_back(draw());
    return numbers;
  };
  EXPECT_EQ(run(true), run(false));
}

// Four files of three records.
Dataset records() {
  const std::string folder = data_test::empty_folder();
  std::vector<std::string> paths;
  for (int f = 0; f < 4; ++f) {
    paths.push_back(concat(folder, "/", f));
    TFRecordWriter writer(paths.back());
    for (int r = 0; r < 3; ++r) writer.write(concat(f, r));
    writer.close();
  }
  return tfrecord_dataset(paths);
}

// Numbers drawn for the rows of all workers.
Numbers drawn_on_workers(const Dataset& dataset, int workers, AutoShardPolicy policy) {
  Numbers all;
  for (int worker = 0; worker < workers; ++worker) {
    all = joined(all, scalars_of(auto_shard(dataset, workers, worker, policy)));
  }
  return all;
}

TEST(RandomFunction, WorkersDrawIndependentNumbersUnderEverySharding) {
  const auto first_bits = [](const Element&, const SampleRandom& random) {
    return Element({number(static_cast<std::int64_t>(random.stream(0).bits(0)))});
  };
  const Dataset files = records();
  const std::vector<Dataset> datasets = {
      augment(files, first_bits, {.seed = 7}),
      augment(files.shuffle(12, 1).prefetch(1), first_bits, {.seed = 7, .num_parallel_calls = 2}),
      augment(Dataset::zip({files, files}), first_bits),
      augment(files.concatenate(files).skip(2), first_bits),
      files.map(drawn),
      files.map(drawn, {.num_parallel_calls = 2}).prefetch(1),
      files.flat_map([](const Element&) { return Dataset::range(1).map(drawn); }),
  };
  for (std::size_t i = 0; i < datasets.size(); ++i) {
    for (const AutoShardPolicy policy :
         {AutoShardPolicy::kFile, AutoShardPolicy::kAuto, AutoShardPolicy::kData}) {
      const Numbers numbers = drawn_on_workers(datasets[i], 2, policy);
      EXPECT_EQ(num_different(numbers), numbers.size()) << i << " " << to_string(policy);
    }
  }
}

// Sharing by elements keeps the numbers of one process.
TEST(RandomFunction, SharesOfElementsDrawTheNumbersOfOneProcess) {
  const auto first_bits = [](const Element&, const SampleRandom& random) {
    return Element({number(static_cast<std::int64_t>(random.stream(2).bits(5)))});
  };
  const Numbers straight = scalars_of(augment(Dataset::range(9), first_bits, {.seed = 4}));
  for (std::int64_t worker = 0; worker < 3; ++worker) {
    Numbers own;
    for (std::size_t i = static_cast<std::size_t>(worker); i < 9; i += 3)
      own.push_back(straight[i]);
    EXPECT_EQ(scalars_of(auto_shard(augment(Dataset::range(9), first_bits, {.seed = 4}), 3,
                                    static_cast<int>(worker), AutoShardPolicy::kData)),
              own);
    EXPECT_EQ(scalars_of(augment(Dataset::range(9), first_bits, {.seed = 4}).shard(3, worker)),
              own);
    // shard() by hand, below.
    EXPECT_EQ(scalars_of(augment(Dataset::range(9).shard(3, worker), first_bits, {.seed = 4})),
              own);
  }
}

}  // namespace function_random_test
}  // namespace tutti
