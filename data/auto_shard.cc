// Dataset::shard() and auto_shard(): sharding by elements, or by files if a pipeline begins with
// files.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/dataset.h"

#include <algorithm>
#include <utility>

#include "core/names.h"
#include "data/data_threads.h"
#include "data/forwarding_source.h"
#include "tutti/core/logging.h"

namespace tutti {

// Dataset::shard().

namespace {

/// Splits shard `whole` further and returns its shard `part`, as a shard of the entire pass.
PassShard shard_of(const PassShard& whole, const PassShard& part) {
  return {whole.count * part.count, whole.index + part.index * whole.count};
}

/// Source that wraps each of its input's iterators in an `Iterator` over one shard.
template <class Iterator>
class ShardSource : public internal::Decorator<ShardSource<Iterator>, Iterator, PassShard> {
 public:
  using internal::Decorator<ShardSource<Iterator>, Iterator, PassShard>::Decorator;

  std::optional<std::int64_t> cardinality() const override {
    const PassShard& part = this->argument();
    const std::optional<std::int64_t> length = this->below().cardinality();
    if (!length || *length == kInfinite) return length;
    return *length > part.index ? (*length - part.index - 1) / part.count + 1 : 0;
  }
  PassShard pass_shard() const override {
    return shard_of(this->below().pass_shard(), this->argument());
  }
};

class ShardIterator : public internal::ForwardingIterator {
 public:
  ShardIterator(std::unique_ptr<ElementIterator> below, const PassShard& part)
      : ForwardingIterator(std::move(below)), count_(part.count), foreign_(part.index) {}

  std::optional<Element> next() override {
    below().skip(foreign_);
    foreign_ = count_ - 1;
    return below().next();
  }

  void skip(std::int64_t count) override {
    if (count < 1) return;
    const std::int64_t later = internal::saturating_product(count - 1, count_);
    below().skip(internal::saturating_sum(foreign_ + 1, later));
    foreign_ = count_ - 1;
  }

 protected:
  std::int64_t count_;
  std::int64_t foreign_;  // number of elements of other shards before this shard's next element
};

}  // namespace

Dataset Dataset::shard(std::int64_t count, std::int64_t index) const {
  internal::require(count >= 1 && index >= 0 && index < count,
                    "Dataset::shard: expected 0 <= index < count, got index ", index, ", count ",
                    count);
  return Dataset(std::make_shared<ShardSource<ShardIterator>>(source_, PassShard{count, index}));
}

// Sharding over workers.

namespace {

/// Number of files in each source at the start of a pipeline; nullopt if unknown.
using FileCounts = std::vector<std::optional<std::int64_t>>;

// Returns true if all sources at the start of the pipeline read files; appends the number of files
// of each source.
bool find_files(const DatasetSource& source, FileCounts& counts) {
  if (const auto files = source.files()) {
    counts.push_back(files->count);
    return true;
  }
  const std::vector<SourcePtr> inputs = source.inputs();
  return !inputs.empty() && std::all_of(inputs.begin(), inputs.end(), [&](const SourcePtr& input) {
    return find_files(*input, counts);
  });
}

/// Source over the files of one worker. Gives its elements numbers that no other worker uses,
/// without knowing how many elements the other workers' files contain.
class WorkerFilesSource : public internal::SourceWith<WorkerFilesSource, PassShard> {
 public:
  using SourceWith::SourceWith;

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    return below().iterate(epoch);
  }
  PassShard pass_shard() const override { return argument(); }
};

SourcePtr with_files_of(const SourcePtr& source, const PassShard& worker) {
  if (const auto files = source->files()) {
    return std::make_shared<WorkerFilesSource>(files->shard(worker.count, worker.index),
                                               shard_of(source->pass_shard(), worker));
  }
  std::vector<SourcePtr> inputs = source->inputs();
  for (SourcePtr& input : inputs) input = with_files_of(input, worker);
  return source->with_inputs(std::move(inputs));
}

[[noreturn]] void fail_too_few(std::int64_t num_workers, std::int64_t num_elements) {
  fail(ErrorCode::kInvalidArgument, "auto_shard: policy DATA: expected at least ", num_workers,
       " elements, one for each worker, got ", num_elements,
       "; try smaller batches, fewer workers or AutoShardPolicy::kOff");
}

// Yields elements index, index + count, ... of a pass. Throws if the pass has elements, but fewer
// than `count`.
class DataShardIterator : public ShardIterator {
 public:
  DataShardIterator(std::unique_ptr<ElementIterator> below, const PassShard& part)
      : ShardIterator(std::move(below), part), index_(part.index) {}

  std::optional<Element> next() override {
    while (seen_ < count_) inspect_first_round();
    if (first_) return std::exchange(first_, std::nullopt);
    if (ended_) return std::nullopt;
    return ShardIterator::next();
  }

  void skip(std::int64_t count) override {
    if (count < 1) return;
    if (seen_ > 0) {  // rare: an exception interrupted the first round
      ElementIterator::skip(count);
      return;
    }
    // skip() resumes an earlier pass, in which the first round was already checked.
    ShardIterator::skip(count);
    seen_ = count_;
  }

 private:
  // Reads the first round, one element at a time, so that an exception loses only one element.
  void inspect_first_round() {
    const std::int64_t place = seen_++;
    std::optional<Element> element = below().next();
    if (!element) {
      seen_ = count_;
      ended_ = true;
      if (place == 0) return;
      first_.reset();
      fail_too_few(count_, place);
    }
    if (place == index_) first_ = std::move(element);
  }

  std::int64_t index_;
  std::int64_t seen_ = 0;  // number of elements read so far in the first round
  bool ended_ = false;
  std::optional<Element> first_;
};

// Inserts the shard before a final prefetch(), as tf does, so that prefetch() reads only this
// worker's elements.
SourcePtr with_data_shard(const SourcePtr& source, const PassShard& part) {
  if (!internal::only_reads_ahead(*source)) {
    return std::make_shared<ShardSource<DataShardIterator>>(source, part);
  }
  return source->with_inputs({with_data_shard(source->inputs().front(), part)});
}

Dataset data_shard(const Dataset& dataset, int num_workers, int index) {
  const std::optional<std::int64_t> length = dataset.cardinality();
  if (length && *length > 0 && *length < num_workers) {
    fail_too_few(num_workers, *length);
  }
  return Dataset(with_data_shard(dataset.shared_source(), PassShard{num_workers, index}));
}

AutoShardChoice choose_automatically(const Dataset& dataset, int num_workers) {
  FileCounts counts;
  if (!find_files(dataset.source(), counts)) {
    return {AutoShardPolicy::kData, "the dataset has sources other than files"};
  }
  std::int64_t fewest = kInfinite;
  for (const auto& count : counts) {
    if (!count) {
      return {AutoShardPolicy::kData, "the number of files that the dataset reads is unknown"};
    }
    if (*count != kInfinite) fewest = fewest == kInfinite ? *count : std::min(fewest, *count);
  }
  const std::string files =
      fewest == kInfinite ? "infinitely many files" : concat(fewest, " files");
  if (fewest != kInfinite && fewest < num_workers) {
    return {AutoShardPolicy::kData,
            concat("there are fewer files (", fewest, ") than workers (", num_workers, ")")};
  }
  return {AutoShardPolicy::kFile, concat(files, " for ", num_workers, " workers")};
}

}  // namespace

std::string_view to_string(AutoShardPolicy policy) {
  constexpr std::string_view kNames[] = {"AUTO", "FILE", "DATA", "OFF"};
  return internal::name_in(kNames, policy, "AutoShardPolicy");
}

AutoShardChoice choose_auto_shard(const Dataset& dataset, int num_workers, AutoShardPolicy policy) {
  if (policy == AutoShardPolicy::kAuto) {
    AutoShardChoice choice = choose_automatically(dataset, num_workers);
    const std::string line =
        concat("auto_shard: AUTO selects ", to_string(choice.policy), ": ", choice.reason);
    if (choice.policy == AutoShardPolicy::kData && num_workers > 1) {
      log_warning(concat(line, "; every worker reads everything and keeps one in ", num_workers,
                         " elements; if that is intended, use AutoShardPolicy::kData"));
    } else {
      log_info(line);
    }
    return choice;
  }
  if (policy == AutoShardPolicy::kFile && !internal::begins_at_files(dataset.source())) {
    fail(ErrorCode::kNotFound,
         "auto_shard: policy FILE: expected a dataset whose sources all read files, such as "
         "tfrecord_dataset(), got a source that reads none or does not report them; use "
         "AutoShardPolicy::kData or kAuto");
  }
  return {policy, "the caller chose it"};
}

Dataset auto_shard(const Dataset& dataset, int num_workers, int index, AutoShardPolicy policy) {
  internal::require(num_workers >= 1 && index >= 0 && index < num_workers,
                    "auto_shard: expected 0 <= index < num_workers, got index ", index,
                    ", num_workers ", num_workers);
  if (num_workers == 1) return dataset;
  switch (choose_auto_shard(dataset, num_workers, policy).policy) {
    case AutoShardPolicy::kFile:
      return Dataset(with_files_of(dataset.shared_source(), {num_workers, index}));
    case AutoShardPolicy::kData:
      return data_shard(dataset, num_workers, index);
    default:
      return dataset;
  }
}

bool internal::begins_at_files(const DatasetSource& source) {
  FileCounts counts;
  return find_files(source, counts);
}

}  // namespace tutti
