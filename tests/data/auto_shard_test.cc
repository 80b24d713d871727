// Tests how datasets are sharded across workers.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/dataset.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "data/data_threads.h"
#include "tests/data/dataset_values.h"
#include "tutti/core/logging.h"
#include "tutti/data/augment.h"
#include "tutti/data/csv.h"
#include "tutti/data/records.h"

namespace tutti::testing::auto_shard_test {

constexpr int kFiles = 10, kRecords = 10;
using Numbers = std::vector<std::int64_t>;

/// Writes files "part-0", "part-1", ..., where record r of file f is the text of the number
/// 10 f + r. Returns a pattern that matches the files.
std::string record_files(int count = kFiles) {
  const std::string folder = empty_folder();
  for (int f = 0; f < count; ++f) {
    TFRecordWriter writer(concat(folder, "/part-", f));
    for (int r = 0; r < kRecords; ++r) writer.write(concat(kRecords * f + r));
    writer.close();
  }
  return folder + "/part-*";
}

Element parsed(const Element& record) {
  return Element({number(std::stoll(std::string(bytes_of(record[0]))))});
}

Dataset records_of(const std::vector<std::string>& paths) {
  return tfrecord_dataset(paths).map(parsed);
}
Dataset records_of(const std::string& pattern) { return records_of(list_files(pattern)); }

Numbers records_of_files(const Numbers& files) {
  Numbers records;
  for (std::int64_t f : files) {
    for (std::int64_t r = 0; r < kRecords; ++r) records.push_back(kRecords * f + r);
  }
  return records;
}

Numbers sorted(Numbers numbers) {
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

/// Transformation that does not report its inputs.
class Opaque : public DatasetSource {
 public:
  explicit Opaque(Dataset below) : below_(std::move(below)) {}
  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    return below_.iterate(epoch);
  }
  std::optional<std::int64_t> cardinality() const override { return std::nullopt; }

 private:
  Dataset below_;
};

TEST(AutoShard, AutoPolicyShardsFilesAndKeepsBatches) {
  const Dataset batches = records_of(record_files()).batch(5);
  EXPECT_EQ(
      rows_of(auto_shard(batches, 5, 3, AutoShardPolicy::kAuto)),
      (Rows{
          {30, 31, 32, 33, 34}, {35, 36, 37, 38, 39}, {80, 81, 82, 83, 84}, {85, 86, 87, 88, 89}}));
}

TEST(AutoShard, AutoPolicyLogsChoiceAndReasonInOneLine) {
  std::vector<std::string> lines;
  const std::string pattern = record_files();
  LogSink before = set_log_sink([&](LogLevel level, std::string_view line) {
    lines.push_back(concat(level == LogLevel::kWarning ? "warning: " : "", line));
  });
  (void)auto_shard(records_of(pattern), 5, 3, AutoShardPolicy::kAuto);
  (void)auto_shard(records_of(pattern), 11, 3, AutoShardPolicy::kAuto);
  (void)auto_shard(Dataset::range(8), 2, 0, AutoShardPolicy::kAuto);
  (void)auto_shard(records_of(pattern), 5, 3, AutoShardPolicy::kFile);
  (void)auto_shard(records_of(pattern), 1, 0, AutoShardPolicy::kAuto);
  set_log_sink(std::move(before));
  EXPECT_EQ(
      lines,
      (std::vector<std::string>{
          "auto_shard: AUTO selects FILE: 10 files for 5 workers",
          "warning: auto_shard: AUTO selects DATA: there are fewer files (10) than workers "
          "(11); every worker reads everything and keeps one in 11 elements; if that is intended, "
          "use AutoShardPolicy::kData",
          "warning: auto_shard: AUTO selects DATA: the dataset has sources other than files; "
          "every worker reads everything and keeps one in 2 elements; if that is "
          "intended, use AutoShardPolicy::kData"}));
}

TEST(AutoShard, EveryInputOfZipAndConcatenateIsShardedByFile) {
  const std::string pattern = record_files();
  const Dataset records = records_of(pattern);
  const Numbers own = records_of_files({3, 8});

  const Dataset pairs = Dataset::zip(
      {records, records.map([](const Element& e) { return Element({number(-number_in(e))}); })});
  Numbers left;
  for (const Element& pair : auto_shard(pairs, 5, 3, AutoShardPolicy::kAuto)) {
    EXPECT_EQ(pair[1].item_int(), -pair[0].item_int());
    left.push_back(pair[0].item_int());
  }
  EXPECT_EQ(left, own);

  Numbers twice = own;
  twice.insert(twice.end(), own.begin(), own.end());
  EXPECT_EQ(scalars_of(auto_shard(records.concatenate(records), 5, 3, AutoShardPolicy::kAuto)),
            twice);
}

TEST(AutoShard, InterleavedFilesAreShardedByFile) {
  const auto paths = std::make_shared<std::vector<std::string>>(list_files(record_files()));
  const Dataset interleaved = Dataset::range(kFiles).interleave(
      [paths](const Element& e) {
        return records_of({(*paths)[static_cast<std::size_t>(number_in(e))]}).prefetch(1);
      },
      {.cycle_length = 2, .block_length = 1});
  Numbers expected;
  for (std::int64_t r = 0; r < kRecords; ++r) {
    expected.push_back(30 + r);
    expected.push_back(80 + r);
  }
  EXPECT_EQ(scalars_of(auto_shard(interleaved, 5, 3, AutoShardPolicy::kAuto)), expected);
  // The interleaved datasets read no files, but the input of flat_map() does.
  const Dataset counted = records_of(*paths).flat_map(
      [](const Element& e) { return Dataset::range(number_in(e), number_in(e) + 1); });
  EXPECT_EQ(scalars_of(auto_shard(counted, 5, 3, AutoShardPolicy::kFile)),
            records_of_files({3, 8}));
  // After a filter, the number of files is unknown: the policy AUTO then shards by elements, but
  // FILE still shards by files.
  const Dataset even = Dataset::range(kFiles)
                           .filter([](const Element& e) { return number_in(e) % 2 == 0; })
                           .flat_map([paths](const Element& e) {
                             return records_of({(*paths)[static_cast<std::size_t>(number_in(e))]});
                           });
  EXPECT_EQ(choose_auto_shard(even, 2, AutoShardPolicy::kAuto).policy, AutoShardPolicy::kData);
  EXPECT_EQ(scalars_of(auto_shard(even, 2, 1, AutoShardPolicy::kFile)), records_of_files({2, 6}));
}

TEST(AutoShard, ShardDoesNotShareCacheWithFullDataset) {
  const Dataset all =
      records_of(record_files()).shuffle(50, 3).cache().batch(4).unbatch().repeat(2);
  EXPECT_EQ(sorted(scalars_of(auto_shard(all, 5, 3, AutoShardPolicy::kFile))),
            sorted(records_of_files({3, 3, 8, 8})));
  EXPECT_EQ(scalars_of(all).size(), 200u);
  EXPECT_EQ(scalars_of(auto_shard(all, 5, 3, AutoShardPolicy::kFile)).size(), 40u);
}

// Covers every transformation in dataset.h and augment.h; tests/strategy covers rebatch().
TEST(AutoShard, ShardingByFileWorksThroughEveryTransformation) {
  const auto same = [](const Element& e) { return e; };
  const auto yes = [](const Element&) { return true; };
  const auto alone = [](const Element& e) {
    return Dataset::range(number_in(e), number_in(e) + 1);
  };
  const auto random = [](const Element& e, const SampleRandom&) { return e; };
  const auto picture = [](const Element& e) {
    return Element({Tensor::full({2, 2, 3}, static_cast<double>(number_in(e)))});
  };
  const auto corner = [](const Element& e) {
    return Element({number(static_cast<std::int64_t>(std::round(e[0].to_doubles()[0])))});
  };
  const auto steps = std::vector<image::ImageStep>{image::random_flip_left_right()};
  const std::map<std::string, std::function<Dataset(const Dataset&)>> decorators = {
      {"shuffle", [=](const Dataset& d) { return d.shuffle(7, 1); }},
      {"batch", [=](const Dataset& d) { return d.batch(4).unbatch(); }},
      {"padded_batch", [=](const Dataset& d) { return d.padded_batch(4).unbatch(); }},
      {"pack",
       [=](const Dataset& d) {
         return d.batch(1).pack(1).map(
             [](const Element& e) { return Element({number(numbers_of(e[0])[0])}); });
       }},
      {"repeat", [=](const Dataset& d) { return d.repeat(1); }},
      {"shard", [=](const Dataset& d) { return d.shard(1, 0); }},
      {"map", [=](const Dataset& d) { return d.map(same, {.num_parallel_calls = 2}); }},
      {"filter", [=](const Dataset& d) { return d.filter(yes); }},
      {"take_while", [=](const Dataset& d) { return d.take_while(yes); }},
      {"enumerate",
       [=](const Dataset& d) {
         return d.enumerate().map([](const Element& e) { return Element({e[1]}); });
       }},
      {"interleave", [=](const Dataset& d) { return d.interleave(alone, {.cycle_length = 3}); }},
      {"flat_map", [=](const Dataset& d) { return d.flat_map(alone); }},
      {"take", [=](const Dataset& d) { return d.take(1000); }},
      {"skip", [=](const Dataset& d) { return d.skip(0); }},
      {"concatenate", [=](const Dataset& d) { return d.concatenate(d.take(0)); }},
      {"zip",
       [=](const Dataset& d) {
         return Dataset::zip({d, d}).map([](const Element& e) { return Element({e[0]}); });
       }},
      {"cache", [=](const Dataset& d) { return d.cache(); }},
      {"prefetch", [=](const Dataset& d) { return d.prefetch(2); }},
      {"augment", [=](const Dataset& d) { return augment(d, random); }},
      {"augment_images",
       [=](const Dataset& d) { return augment_images(d.map(picture), steps).map(corner); }},
      // A batch of one row is mixed with itself.
      {"mixup",
       [=](const Dataset& d) {
         return mixup(d.map(picture).batch(1), {.alpha = 0.2}).unbatch().map(corner);
       }},
      {"cutmix",
       [=](const Dataset& d) { return cutmix(d.map(picture).batch(1)).unbatch().map(corner); }},
  };
  const Dataset records = records_of(record_files());
  for (const auto& [name, decorate] : decorators) {
    const Dataset dataset = decorate(records);
    EXPECT_EQ(choose_auto_shard(dataset, 5, AutoShardPolicy::kAuto).policy, AutoShardPolicy::kFile)
        << name;
    EXPECT_EQ(sorted(scalars_of(auto_shard(dataset, 5, 3, AutoShardPolicy::kFile))),
              records_of_files({3, 8}))
        << name;
  }
}

TEST(AutoShard, AutoPolicyWithoutFilesShardsElements) {
  Numbers even;
  for (std::int64_t i = 0; i < 1024; i += 2) even.push_back(i);
  const Dataset part = auto_shard(Dataset::range(1024), 2, 0, AutoShardPolicy::kAuto);
  EXPECT_EQ(scalars_of(part), even);
  EXPECT_EQ(part.cardinality(), 512);
}

TEST(AutoShard, FilePolicyWithoutFilesIsAnError) {
  const Dataset records = records_of(record_files());
  const Dataset generated = Dataset::from_generator(
      [](std::uint64_t) { return [] { return std::optional<Element>(); }; });
  for (const Dataset& dataset :
       {Dataset::range(1024), Dataset::range(8).batch(2), generated,
        Dataset::zip({records, Dataset::range(100)}), records.concatenate(Dataset::range(5)),
        Dataset(std::make_shared<Opaque>(records))}) {
    EXPECT_ERROR((void)auto_shard(dataset, 2, 0, AutoShardPolicy::kFile), kNotFound, "FILE",
                 "kData");
  }
}

TEST(AutoShard, PolicyOffGivesAllElementsToEveryWorker) {
  const Dataset records = records_of(record_files());
  for (int worker = 0; worker < 5; ++worker) {
    EXPECT_EQ(scalars_of(auto_shard(records, 5, worker, AutoShardPolicy::kOff)),
              first_numbers(100));
  }
}

TEST(AutoShard, DataPolicyShardsElementsOfEveryFile) {
  Numbers expected;
  for (std::int64_t f = 0; f < kFiles; ++f) {
    expected.push_back(kRecords * f);
    expected.push_back(kRecords * f + 5);
  }
  EXPECT_EQ(scalars_of(auto_shard(records_of(record_files()), 5, 0, AutoShardPolicy::kData)),
            expected);
}

// As in tf.data, the shard is inserted before final prefetch() calls, so that they prefetch the
// right number of elements.
TEST(AutoShard, DataShardPrecedesFinalPrefetch) {
  const Dataset ahead = Dataset::range(10).map([](const Element& e) { return e; }).prefetch(2);
  const Dataset own = auto_shard(ahead.prefetch(1), 5, 3, AutoShardPolicy::kData);
  EXPECT_EQ(scalars_of(own), (Numbers{3, 8}));
  SourcePtr source = own.shared_source();
  for (int step = 0; step < 2; ++step) {
    EXPECT_TRUE(internal::only_reads_ahead(*source));
    EXPECT_EQ(source->cardinality(), 2);
    source = source->inputs().front();
  }
  EXPECT_FALSE(internal::only_reads_ahead(*source));
  EXPECT_EQ(source->cardinality(), 2);
  EXPECT_EQ(source->inputs().front()->cardinality(), 10);

  // A prefetch in the middle of the pipeline is not moved.
  const Dataset batches = auto_shard(ahead.batch(2), 5, 3, AutoShardPolicy::kData);
  EXPECT_FALSE(internal::only_reads_ahead(batches.source()));
  EXPECT_EQ(rows_of(batches), (Rows{{6, 7}}));
}

TEST(AutoShard, FewerElementsThanWorkersIsAnError) {
  const auto any = [](const Element&) { return true; };
  EXPECT_INVALID((void)auto_shard(Dataset::range(5), 10, 0, AutoShardPolicy::kData), "at least 10",
                 "got 5");
  // If the number of elements is not known in advance, each worker throws at its first element.
  for (int worker = 0; worker < 10; ++worker) {
    const Dataset part =
        auto_shard(Dataset::range(5).filter(any), 10, worker, AutoShardPolicy::kData);
    EXPECT_INVALID((void)scalars_of(part), "at least 10", "got 5");
  }
  EXPECT_EQ(scalars_of(auto_shard(Dataset::range(0), 10, 3, AutoShardPolicy::kData)), Numbers{});
  EXPECT_EQ(scalars_of(auto_shard(Dataset::range(0).filter(any), 10, 3, AutoShardPolicy::kData)),
            Numbers{});
  EXPECT_EQ(scalars_of(auto_shard(Dataset::range(10).filter(any), 10, 9, AutoShardPolicy::kData)),
            Numbers{9});
}

TEST(AutoShard, RefusesWorkerIndexOutOfRange) {
  const auto expect_refused = [](int workers, int index) {
    EXPECT_INVALID((void)auto_shard(Dataset::range(4), workers, index, AutoShardPolicy::kAuto),
                   "0 <= index < num_workers");
  };
  expect_refused(2, 2);
  expect_refused(2, -1);
  expect_refused(0, 0);
  expect_refused(1, 1);
}

TEST(AutoShard, WorkerIndexBeyondFileCountYieldsNoElements) {
  const std::string pattern = record_files();
  EXPECT_EQ(scalars_of(auto_shard(records_of(pattern), 500, 499, AutoShardPolicy::kFile)),
            Numbers{});
  EXPECT_EQ(scalars_of(auto_shard(records_of(pattern).repeat(), 500, 499, AutoShardPolicy::kFile)),
            Numbers{});
  EXPECT_EQ(scalars_of(auto_shard(records_of(pattern), 500, 9, AutoShardPolicy::kFile)),
            records_of_files({9}));
}

TEST(AutoShard, ShardsOfShuffledFileListsAreDisjointAndComplete) {
  const std::string pattern = record_files();
  const auto paths = std::make_shared<std::vector<std::string>>(list_files(pattern));
  const Dataset listed = records_of(list_files(pattern, {.shuffle = true, .seed = 7}));
  const Dataset shuffled = Dataset::range(kFiles).shuffle(kFiles, 7).interleave(
      [paths](const Element& e) {
        return records_of({(*paths)[static_cast<std::size_t>(number_in(e))]});
      },
      {.cycle_length = 3});
  for (const Dataset& dataset : {listed, shuffled}) {
    for (AutoShardPolicy policy : {AutoShardPolicy::kFile, AutoShardPolicy::kData}) {
      for (std::uint64_t epoch : {0u, 1u}) {
        Numbers all = scalars_of(auto_shard(dataset, 2, 0, policy), epoch);
        EXPECT_EQ(all.size(), 50u);
        const Numbers other = scalars_of(auto_shard(dataset, 2, 1, policy), epoch);
        all.insert(all.end(), other.begin(), other.end());
        EXPECT_EQ(sorted(all), first_numbers(100)) << to_string(policy) << " " << epoch;
      }
    }
  }
}

TEST(AutoShard, TextFilesAreShardedByListPosition) {
  const std::string folder = empty_folder();
  std::vector<std::string> paths;
  for (int f = 0; f < 3; ++f) {
    paths.push_back(concat(folder, "/", f, ".csv"));
    write_bytes(paths.back(), concat("x\n", 2 * f, "\n", 2 * f + 1, "\n"));
  }
  std::swap(paths[0], paths[2]);
  const Dataset rows = csv_dataset(paths);
  EXPECT_EQ(scalars_of(auto_shard(rows, 2, 0, AutoShardPolicy::kAuto)), (Numbers{4, 5, 0, 1}));
  EXPECT_EQ(scalars_of(auto_shard(rows, 2, 1, AutoShardPolicy::kAuto)), (Numbers{2, 3}));
}

TEST(AutoShard, AutoPolicyShardsElementsOfOpaqueDataset) {
  const Dataset opaque(std::make_shared<Opaque>(records_of(record_files())));
  Numbers expected;
  for (std::int64_t i = 0; i < 100; i += 5) expected.push_back(i);
  EXPECT_EQ(scalars_of(auto_shard(opaque, 5, 0, AutoShardPolicy::kAuto)), expected);
}

TEST(AutoShard, AutoPolicyShardsElementsIfThereAreFewerFilesThanWorkers) {
  const Dataset records = records_of(record_files(3));
  Numbers all;
  for (int worker = 0; worker < 4; ++worker) {
    const Numbers part = scalars_of(auto_shard(records, 4, worker, AutoShardPolicy::kAuto));
    EXPECT_GE(part.size(), 7u);
    all.insert(all.end(), part.begin(), part.end());
  }
  EXPECT_EQ(sorted(all), first_numbers(30));
  // With two lists of files, the policy depends on the shorter list, not on the total.
  const Dataset both = Dataset::zip({records_of(record_files(3)), records});
  EXPECT_EQ(choose_auto_shard(both, 4, AutoShardPolicy::kAuto).policy, AutoShardPolicy::kData);
  EXPECT_EQ(choose_auto_shard(both, 3, AutoShardPolicy::kAuto).policy, AutoShardPolicy::kFile);
}

// An exception for one element must not cause the loss of other elements.
TEST(AutoShard, FailingElementDoesNotDropOtherElements) {
  for (std::int64_t broken : {0, 1, 2, 4}) {
    const Dataset numbers = Dataset::range(6).map([broken](const Element& e) {
      if (number_in(e) == broken) fail(ErrorCode::kDataLoss, "broken");
      return e;
    });
    const auto elements = auto_shard(numbers, 3, 1, AutoShardPolicy::kData).iterate(0);
    Numbers seen;
    for (int call = 0; call < 4; ++call) {
      try {
        if (const auto element = elements->next()) seen.push_back(number_in(*element));
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kDataLoss);
      }
    }
    Numbers expected = {1, 4};
    std::erase(expected, broken);
    EXPECT_EQ(seen, expected) << broken;
  }
}

}  // namespace tutti::testing::auto_shard_test
