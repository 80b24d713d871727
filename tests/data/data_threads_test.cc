// Tests datasets that start threads, and random numbers that user functions draw without a key.
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <set>

#include "data/data_threads.h"
#include "tests/data/dataset_values.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"
#include "tutti/data/augment.h"
#include "tutti/data/records.h"
#include "tutti/tensor/ops/random_ops.h"

namespace tutti::testing::data_threads_test {

TimePoint soon() { return Clock::system().now() + std::chrono::seconds(60); }

Dataset range_failing_at(std::int64_t end, std::int64_t bad) {
  return Dataset::range(end).map([bad](const Element& element) -> Element {
    if (number_in(element) == bad) fail(ErrorCode::kDataLoss, "element ", bad, " is broken");
    return element;
  });
}

/// Returns the values, with -1 in place of each exception.
std::vector<std::int64_t> values_and_errors(const Dataset& dataset) {
  std::vector<std::int64_t> values;
  auto elements = dataset.iterate();
  for (;;) {
    try {
      auto element = elements->next();
      if (!element) return values;
      values.push_back(number_in(*element));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDataLoss);
      values.push_back(-1);
    }
  }
}

TEST(ParallelMap, PreservesOrder) {
  for (int threads : {2, 3, 8}) {
    const Dataset mapped = Dataset::range(200).map(
        [](const Element& element) {
          // Multiples of 7 finish after later elements.
          const std::int64_t value = number_in(element);
          if (value % 7 == 0) Clock::system().sleep_for(std::chrono::microseconds(300));
          return Element({number(value)});
        },
        MapOptions{.num_parallel_calls = threads});
    EXPECT_EQ(scalars_of(mapped), first_numbers(200)) << threads << " threads";
    EXPECT_EQ(mapped.cardinality(), 200);
  }
}

TEST(ParallelMap, ProcessesElementsConcurrently) {
  std::atomic<int> inside = 0;
  Event all_inside;
  const Dataset mapped = Dataset::range(3).map(
      [&](const Element& element) {
        if (++inside == 3) all_inside.set();
        if (!all_inside.wait_until(soon())) fail(ErrorCode::kDeadlineExceeded, "not concurrent");
        return element;
      },
      MapOptions{.num_parallel_calls = 3});
  EXPECT_EQ(scalars_of(mapped), first_numbers(3));
}

TEST(ParallelMap, ThrowsExceptionAtPositionOfItsElement) {
  const MapOptions parallel{.num_parallel_calls = 4};
  auto same = [](const Element& element) { return element; };
  auto failing = [](const Element& element) -> Element {
    if (number_in(element) == 2) fail(ErrorCode::kDataLoss, "no twos");
    return element;
  };
  const auto expected = ElementsAre(0, 1, -1, 3, 4);
  EXPECT_THAT(values_and_errors(Dataset::range(5).map(failing)), expected);
  EXPECT_THAT(values_and_errors(Dataset::range(5).map(failing, parallel)), expected);
  EXPECT_THAT(values_and_errors(range_failing_at(5, 2).map(same, parallel)), expected);
  EXPECT_THAT(values_and_errors(range_failing_at(5, 0).map(same, parallel)),
              ElementsAre(-1, 1, 2, 3, 4));
}

TEST(ParallelMap, SkipsElementsThatAreBeingProcessed) {
  auto elements =
      Dataset::range(30)
          .map([](const Element& element) { return element; }, MapOptions{.num_parallel_calls = 2})
          .iterate();
  EXPECT_EQ(number_in(*elements->next()), 0);
  elements->skip(2);
  EXPECT_EQ(number_in(*elements->next()), 3);
  elements->skip(20);
  EXPECT_EQ(number_in(*elements->next()), 24);
  elements->skip(100);
  EXPECT_FALSE(elements->next());
}

TEST(ParallelMap, StopsWhenDestroyedEarly) {
  std::atomic<int> calls = 0;
  for (int taken : {0, 1, 5}) {
    auto elements = Dataset::range(1'000'000)
                        .map(
                            [&](const Element& element) {
                              ++calls;
                              return element;
                            },
                            MapOptions{.num_parallel_calls = 3})
                        .iterate();
    for (int i = 0; i < taken; ++i) elements->next();
  }
  EXPECT_LE(calls, 3 * (5 + 6));
}

TEST(Prefetch, YieldsSameElementsAsInputDataset) {
  for (int depth : {0, 1, 2, 100}) {
    EXPECT_EQ(scalars_of(Dataset::range(50).prefetch(depth)), first_numbers(50));
  }
  EXPECT_EQ(Dataset::range(50).prefetch(3).cardinality(), 50);
  EXPECT_TRUE(scalars_of(Dataset::range(0).prefetch(2)).empty());
  EXPECT_INVALID(Dataset::range(5).prefetch(-1), "Dataset::prefetch", "-1");
}

TEST(Prefetch, ReadsAheadUpToBufferSize) {
  std::atomic<int> read = 0;
  Event fourth;
  auto elements = Dataset::range(100)
                      .map([&](const Element& element) {
                        if (++read == 4) fourth.set();
                        return element;
                      })
                      .prefetch(3)
                      .iterate();
  elements->next();
  // One element was returned, and three were read ahead.
  EXPECT_TRUE(fourth.wait_until(soon()));
  Clock::system().sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(read, 4);
}

TEST(Prefetch, PreservesExceptionOrderAndStopsWhenDestroyed) {
  EXPECT_THAT(values_and_errors(range_failing_at(4, 1).prefetch(2)), ElementsAre(0, -1, 2, 3));
  auto single = Dataset::range(1).prefetch(1).iterate();
  EXPECT_TRUE(single->next());
  EXPECT_FALSE(single->next());
  EXPECT_FALSE(single->next());
  for (int taken = 0; taken < 4; ++taken) {
    auto elements = Dataset::range(3).repeat().prefetch(2).iterate();
    for (int i = 0; i < taken; ++i) EXPECT_TRUE(elements->next());
  }
}

TEST(Prefetch, StopsWhenDestroyedWhileSourceBlocks) {
  auto release = std::make_shared<Event>();
  auto blocked = std::make_shared<Event>();
  auto slow = Dataset::from_generator([=](std::uint64_t) {
    return [=, i = 0]() mutable -> std::optional<Element> {
      if (i == 1) {
        blocked->set();
        release->wait_until(soon());
      }
      return Element({number(i++)});
    };
  });
  auto elements = slow.prefetch(1).prefetch(4).iterate();
  EXPECT_EQ(number_in(*elements->next()), 0);
  EXPECT_TRUE(blocked->wait_until(soon()));
  Event destroyed;
  auto destroyer = Executor::system().start("destroyer", [&] {
    elements.reset();
    destroyed.set();
  });
  EXPECT_FALSE(destroyed.wait_until(Clock::system().now() + std::chrono::milliseconds(20)));
  release->set();
  EXPECT_TRUE(destroyed.wait_until(soon()));
}

TEST(Prefetch, SkipWorksBeforeAndAfterFirstRead) {
  auto elements = Dataset::range(20).prefetch(2).iterate();
  elements->skip(5);
  EXPECT_EQ(number_in(*elements->next()), 5);
  elements->skip(4);
  EXPECT_EQ(number_in(*elements->next()), 10);
}

/// Creates datasets of numbers, and counts the elements read from them.
struct CountedRange {
  std::shared_ptr<std::atomic<int>> reads = std::make_shared<std::atomic<int>>(0);
  Dataset dataset(std::int64_t length) const {
    return Dataset::range(length).map([reads = reads](const Element& element) {
      ++*reads;
      return element;
    });
  }
};

TEST(Cache, ReadsSourceOnlyOnce) {
  const CountedRange counted;
  const Dataset cached = counted.dataset(5).shuffle(5, 1).cache();
  const auto first = scalars_of(cached, 0);
  EXPECT_EQ(scalars_of(cached, 1), first);
  EXPECT_EQ(scalars_of(cached.repeat(2)).size(), 10u);
  EXPECT_EQ(*counted.reads, 5);
}

TEST(Cache, IsFilledOnlyByCompletePass) {
  const CountedRange counted;
  const Dataset cached = counted.dataset(5).cache();
  EXPECT_EQ(scalars_of(cached.take(4)), first_numbers(4));
  EXPECT_EQ(*counted.reads, 4);
  EXPECT_EQ(scalars_of(cached), first_numbers(5));
  EXPECT_EQ(*counted.reads, 9);
  EXPECT_EQ(scalars_of(cached), first_numbers(5));
  EXPECT_EQ(*counted.reads, 9);
}

TEST(Cache, IsFilledDespiteSkipsButNotAfterError) {
  const CountedRange counted;
  const Dataset cached = counted.dataset(5).cache();
  auto elements = cached.iterate();
  elements->skip(3);
  EXPECT_EQ(number_in(*elements->next()), 3);
  while (elements->next()) {
  }
  EXPECT_EQ(scalars_of(cached), first_numbers(5));
  EXPECT_EQ(*counted.reads, 5);

  const Dataset broken = range_failing_at(4, 1).cache();
  EXPECT_THAT(values_and_errors(broken), ElementsAre(0, -1, 2, 3));
  EXPECT_THAT(values_and_errors(broken), ElementsAre(0, -1, 2, 3));
}

TEST(Cache, SupportsTwoSimultaneousFirstPasses) {
  const Dataset cached = Dataset::range(6).cache();
  auto a = cached.iterate();
  auto b = cached.iterate();
  a->next();
  EXPECT_EQ(drain(*b).size(), 6u);
  EXPECT_EQ(drain(*a).size(), 5u);
  EXPECT_EQ(scalars_of(cached), first_numbers(6));
}

TEST(Dataset, SupportsConcurrentIteration) {
  const Dataset dataset =
      Dataset::range(64)
          .cache()
          .shuffle(16, 4)
          .map([](const Element& element) { return element; }, MapOptions{.num_parallel_calls = 2})
          .batch(4)
          .prefetch(2);
  const auto expected = rows_of(Dataset::range(64).shuffle(16, 4).batch(4), 5);
  std::atomic<int> right = 0;
  {
    std::vector<std::unique_ptr<Thread>> threads;
    for (int i = 0; i < 4; ++i) {
      threads.push_back(Executor::system().start("reader", [&] {
        if (rows_of(dataset, 5) == expected) ++right;
      }));
    }
  }
  EXPECT_EQ(right, 4);
}

using Numbers = std::vector<std::int64_t>;

/// Draws 24 random bits.
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

/// Creates the dataset as a new run of the same program would, with datasets numbered from 0.
Dataset made_first(const std::function<Dataset()>& make) {
  set_random_seed(5);
  return make();
}

TEST(RandomFunction, MapIsIndependentOfThreadCountAndDiffersPerEpoch) {
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
    EXPECT_EQ(scalars_of(dataset, 0), zero);  // each pass depends only on the epoch
  }
  set_random_seed(6);
  EXPECT_NE(scalars_of(ways[0](), 0), zero);
}

TEST(RandomFunction, EveryFunctionTypeDrawsNewNumbersInEachEpoch) {
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
    EXPECT_GE(passes.size(), 3u) << "kind " << i;  // two take_while() passes may have equal lengths
  }
}

// User-defined source that draws random numbers in next().
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

TEST(RandomFunction, PrefetchedUserSourceDrawsDifferentNumbersPerEpoch) {
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

// Creates one inner dataset per element, as readers of interleaved files do.
TEST(RandomFunction, InterleavedDatasetsDrawIndependentNumbers) {
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

TEST(RandomFunction, DatasetsDoNotAdvanceGlobalGenerator) {
  const auto run = [](bool with_dataset) {
    set_random_seed(3);
    Numbers numbers = {draw()};
    if (with_dataset) (void)scalars_of(Dataset::range(5).map(drawn));
    numbers.push_back(draw());
    return numbers;
  };
  EXPECT_EQ(run(true), run(false));
}

/// Returns a dataset of four files with three records each.
Dataset records() {
  const std::string folder = empty_folder();
  std::vector<std::string> paths;
  for (int f = 0; f < 4; ++f) {
    paths.push_back(concat(folder, "/", f));
    TFRecordWriter writer(paths.back());
    for (int r = 0; r < 3; ++r) writer.write(concat(f, r));
    writer.close();
  }
  return tfrecord_dataset(paths);
}

/// Returns the numbers drawn for the elements of all workers.
Numbers drawn_on_workers(const Dataset& dataset, int workers, AutoShardPolicy policy) {
  Numbers all;
  for (int worker = 0; worker < workers; ++worker) {
    all = joined(all, scalars_of(auto_shard(dataset, workers, worker, policy)));
  }
  return all;
}

TEST(RandomFunction, ShardedWorkersDrawIndependentNumbers) {
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

// Workers that read shards draw the same numbers as one process that reads all elements.
TEST(RandomFunction, WorkersWithElementShardsDrawSameNumbersAsOneProcess) {
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
    // Here shard() is called explicitly, before augment().
    EXPECT_EQ(scalars_of(augment(Dataset::range(9).shard(3, worker), first_bits, {.seed = 4})),
              own);
  }
}

}  // namespace tutti::testing::data_threads_test
