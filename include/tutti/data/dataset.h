// Datasets, built as chains of decorators around a source, and their sharding across workers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/data/element.h"

namespace tutti {

/// One pass over a dataset. Not thread-safe.
class ElementIterator {
 public:
  virtual ~ElementIterator() = default;
  /// Returns the next element, or nullopt at the end and on every later call.
  virtual std::optional<Element> next() = 0;
  /// Skips `count` elements, or all that remain if there are fewer, to restore a position. By
  /// default, calls next().
  virtual void skip(std::int64_t count);
};

/// Shard of a pass: the elements with the numbers index, index + count, ...
struct PassShard {
  std::int64_t count = 1;
  std::int64_t index = 0;
};

class DatasetSource;
/// Source that datasets share.
using SourcePtr = std::shared_ptr<const DatasetSource>;

/// Files that a source reads one by one, so that they can be distributed across workers.
struct SourceFiles {
  /// Number of files; nullopt: unknown before they are read; kInfinite: endless.
  std::optional<std::int64_t> count;
  /// Returns a copy of the source that reads only the files index, index + count, ...; there
  /// may be none.
  std::function<SourcePtr(std::int64_t count, std::int64_t index)> shard;
};

/// Source of elements. Immutable; iterate() is thread-safe.
class DatasetSource {
 public:
  virtual ~DatasetSource() = default;
  /// Starts pass number `epoch`. The number affects only shuffles and other random sources.
  virtual std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const = 0;
  /// Returns the number of elements in a pass; nullopt if unknown, kInfinite if it never ends.
  virtual std::optional<std::int64_t> cardinality() const = 0;
  /// Returns the number of rows of a full batch by tf's rule: batch() sets it; calls such as take()
  /// and shuffle() keep it; after map(), filter() or interleave() it is unknown.
  virtual std::optional<std::int64_t> batch_size() const { return std::nullopt; }
  /// Returns how many times examples were batched into an element: 0 for single examples, 1 for
  /// batches. nullopt if unknown: after map() and interleave(), for generators, from_tensors(), and
  /// sources that do not report it.
  virtual std::optional<int> batch_depth() const { return std::nullopt; }
  /// Returns true if the last batch may have fewer rows.
  virtual bool may_end_in_partial_batch() const { return false; }
  /// Returns the shard of the full pass that this source yields, if workers share the files or
  /// elements of a pass. Keys for random numbers (augment(), map()) contain the element's number in
  /// the full pass, so that no two workers draw the same numbers.
  virtual PassShard pass_shard() const { return {}; }

  /// Returns the sources that this one reads from, in order, so that auto_shard() can rewrite
  /// pipelines. Empty for sources without inputs and for those that do not report their inputs.
  virtual std::vector<SourcePtr> inputs() const { return {}; }
  /// Returns a copy of this source with `inputs` in place of inputs(). Requires: equal numbers of
  /// inputs.
  virtual SourcePtr with_inputs(std::vector<SourcePtr> inputs) const;
  /// Returns the files that this source reads; nullopt if it reads none or does not report them.
  virtual std::optional<SourceFiles> files() const { return std::nullopt; }
};

/// Count for repeat() and take() that means "no end"; also the cardinality of an endless dataset.
inline constexpr std::int64_t kInfinite = -1;
/// Value of a padded shape's dimension: the size of the batch's largest element.
inline constexpr std::int64_t kLargest = -1;

/// Options for Dataset::map().
struct MapOptions {
  /// Number of elements processed concurrently; they are yielded in order. 1: the caller's thread
  /// processes them.
  int num_parallel_calls = 1;
};
/// Options for Dataset::batch().
struct BatchOptions {
  /// If true, drops the last batch if it has fewer rows.
  bool drop_remainder = false;
};
/// Options for Dataset::padded_batch().
struct PaddedBatchOptions {
  bool drop_remainder = false;
  /// One shape per component, where kLargest means the size of the batch's largest element.
  /// Default: kLargest in every dimension.
  std::vector<std::vector<std::int64_t>> padded_shapes = {};
  /// One value per component; default: 0.
  std::vector<double> padding_values = {};
};
/// Options for Dataset::interleave().
struct InterleaveOptions {
  /// Number of datasets read alternately.
  std::int64_t cycle_length = 1;
  /// Number of consecutive elements taken from each dataset.
  std::int64_t block_length = 1;
};
/// Options for Dataset::pack().
struct PackOptions {
  /// Distance between the starts of consecutive rows. Default: the length, so that rows do not
  /// overlap.
  std::optional<std::int64_t> shift = std::nullopt;
  /// Number appended to each element, to mark the end of a document. Default: none; elements are
  /// parts of one stream.
  std::optional<std::int64_t> end = std::nullopt;
  /// True to add labels to rows: the label of each number is the number that follows it.
  bool next_as_labels = false;
};
/// Options for Dataset::shuffle().
struct ShuffleOptions {
  std::uint64_t seed = 0;
  /// If true, each pass has a different order.
  bool reshuffle_each_iteration = true;
};

/// Value handle to a shared source. Each transformation returns a new dataset that wraps this one.
/// Like tf.data.Dataset.
class Dataset {
 public:
  explicit Dataset(SourcePtr source) : source_(std::move(source)) {}

  /// Returns a dataset whose element i is row i of every tensor. Throws kInvalidArgument if their
  /// first dimensions differ.
  static Dataset from_tensor_slices(std::vector<Tensor> tensors);
  /// Overload for `from_tensor_slices(x, y)`.
  template <std::convertible_to<Tensor>... Tensors>
  static Dataset from_tensor_slices(const Tensors&... tensors) requires(sizeof...(Tensors) > 0) {
    return from_tensor_slices(std::vector<Tensor>{tensors...});
  }
  /// Returns a dataset of one element.
  static Dataset from_tensors(std::vector<Tensor> tensors);
  /// Returns int64 scalars begin, begin + step, ... below end (above end for a negative step).
  /// Throws kInvalidArgument for step 0.
  static Dataset range(std::int64_t end);
  static Dataset range(std::int64_t begin, std::int64_t end, std::int64_t step = 1);
  /// Function that returns the next element, or nullopt at the end. from_generator() calls `make`
  /// once per pass to get a generator.
  using Generator = std::function<std::optional<Element>()>;
  static Dataset from_generator(std::function<Generator(std::uint64_t epoch)> make);
  /// Returns a dataset whose element i holds the components of element i of every dataset. They
  /// keep their names if these are all different; otherwise they get the default names. Ends with
  /// the shortest dataset. Throws kInvalidArgument if `datasets` is empty.
  static Dataset zip(std::vector<Dataset> datasets);

  /// Shuffles in an order keyed by (seed, epoch): each element is drawn from a buffer of
  /// `buffer_size` elements.
  Dataset shuffle(std::int64_t buffer_size, ShuffleOptions options = {}) const;
  Dataset shuffle(std::int64_t buffer_size, std::uint64_t seed) const {
    return shuffle(buffer_size, ShuffleOptions{.seed = seed});
  }
  /// Stacks `size` consecutive elements; `size` is the GLOBAL batch size. If two elements differ in
  /// shape, throws kInvalidArgument, naming the component and both shapes.
  Dataset batch(std::int64_t size, BatchOptions options = {}) const;
  /// Same as batch(), but pads components that differ in size (not in rank) at their ends. Throws
  /// kInvalidArgument for an element larger than its padded shape.
  Dataset padded_batch(std::int64_t size, PaddedBatchOptions options = {}) const;
  /// Concatenates elements, int64 or int32 [n] (documents or parts of a stream, of any length), and
  /// cuts them into rows, int64 [length]. An incomplete last row is dropped. Use `.shift` for
  /// overlapping windows over a token stream, and `.next_as_labels` to train a language model.
  /// Throws kInvalidArgument for other elements.
  Dataset pack(std::int64_t length, PackOptions options = {}) const;
  /// Yields the rows of every element. Throws kFailedPrecondition for elements without rows.
  Dataset unbatch() const;
  /// Repeats the dataset `count` times; each repetition is a new epoch for the wrapped sources.
  /// kInfinite (default): endlessly, or until a pass is empty.
  Dataset repeat(std::int64_t count = kInfinite) const;
  /// Keeps elements index, index + count, ... Throws kInvalidArgument unless 0 <= index < count.
  Dataset shard(std::int64_t count, std::int64_t index) const;
  /// Applies `fn`, which must depend only on the element (skip() does not call `fn`) and, with
  /// several parallel calls, be thread-safe. next() throws the exceptions of `fn` in place of the
  /// element; the pass can continue. Random numbers that `fn` draws without a key
  /// (random_uniform(shape), layers in training mode) are keyed by the global seed, this map()
  /// call, the epoch and the element, whichever thread draws them. Random numbers in
  /// generators and in the functions passed to filter(), take_while(), interleave() and flat_map()
  /// are keyed in the same way. augment() has its own seed.
  Dataset map(std::function<Element(const Element&)> fn, MapOptions options = {}) const;
  /// Keeps the elements for which `predicate` is true.
  Dataset filter(std::function<bool(const Element&)> predicate) const;
  /// Ends before the first element for which `predicate` is false.
  Dataset take_while(std::function<bool(const Element&)> predicate) const;
  /// Adds a first component "index", int64 [], which counts from `start`.
  Dataset enumerate(std::int64_t start = 0) const;
  /// Creates a dataset from each element and interleaves `cycle_length` of these datasets, taking
  /// `block_length` elements at a time, in tf's order. Passes over the datasets have this pass's
  /// epoch number. `make` must depend only on its argument.
  Dataset interleave(std::function<Dataset(const Element&)> make,
                     InterleaveOptions options = {}) const;
  /// Yields the elements of the first dataset that `make` returns, then those of the second, ...
  Dataset flat_map(std::function<Dataset(const Element&)> make) const;
  /// take() keeps only the first `count` elements; skip() omits them. kInfinite means all elements.
  /// Both throw kInvalidArgument for other negative numbers.
  Dataset take(std::int64_t count) const;
  Dataset skip(std::int64_t count) const;
  /// Yields the elements of this dataset, then those of `next`. Iterators throw kInvalidArgument if
  /// an element of `next` differs from this dataset's first element in names, types or ranks.
  Dataset concatenate(const Dataset& next) const;
  /// Keeps the elements of the first complete pass in memory and yields them in every later one.
  Dataset cache() const;
  /// Reads up to `depth` elements ahead on a thread (0: no thread). next() rethrows that thread's
  /// exceptions.
  Dataset prefetch(int depth) const;

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch = 0) const {
    return source_->iterate(epoch);
  }
  std::optional<std::int64_t> cardinality() const { return source_->cardinality(); }
  std::optional<std::int64_t> batch_size() const { return source_->batch_size(); }
  const DatasetSource& source() const { return *source_; }
  const SourcePtr& shared_source() const { return source_; }

  /// Iterator for range-based for loops over one pass, with epoch 0.
  class Iterator {
   public:
    using value_type = Element;
    using difference_type = std::ptrdiff_t;
    Iterator() = default;
    explicit Iterator(std::shared_ptr<ElementIterator> elements);
    const Element& operator*() const { return *current_; }
    const Element* operator->() const { return &*current_; }
    Iterator& operator++();
    bool operator==(std::default_sentinel_t) const { return !current_.has_value(); }

   private:
    std::shared_ptr<ElementIterator> elements_;
    std::optional<Element> current_;
  };
  Iterator begin() const;
  std::default_sentinel_t end() const { return {}; }

 private:
  SourcePtr source_;
};

/// Like tf.data.experimental.AutoShardPolicy, but without HINT (see docs/deviations.md).
enum class AutoShardPolicy {
  /// kFile if every source at the start of the pipeline reads files, and there are at least as many
  /// files as workers; else kData.
  kAuto,
  /// Worker i reads files i, i + workers, ... If there are more workers than files, the last
  /// workers have no elements.
  kFile,
  /// Every worker reads everything; worker i keeps elements i, i + workers, ...
  kData,
  /// Every worker reads all elements.
  kOff
};

/// Returns tf's name of the policy: "AUTO", "FILE", "DATA" or "OFF".
std::string_view to_string(AutoShardPolicy policy);

/// Policy that applies to a dataset, and the reason.
struct AutoShardChoice {
  AutoShardPolicy policy = AutoShardPolicy::kOff;  // never kAuto
  std::string reason = {};
};

/// Resolves `policy`. Follows `dataset` back to its sources: through every decorator, all inputs of
/// zip() and concatenate(), and the first dataset that interleave() creates. Logs what kAuto chose
/// and why, as a warning if several workers read everything (kData). Throws kNotFound for kFile if
/// one of these sources reads no files or does not report them.
AutoShardChoice choose_auto_shard(const Dataset& dataset, int num_workers, AutoShardPolicy policy);

/// Returns the shard of worker `index`: a pipeline like `dataset`, sharded by the policy of
/// choose_auto_shard(). With kFile, each source reads only the worker's files, in their order, and
/// elements paired by zip() stay paired if paired files hold the same number of elements. kData
/// keeps every num_workers-th element; if the pipeline ends in prefetch(), only these are
/// prefetched. If a non-empty pass has fewer elements than workers, auto_shard() throws
/// kInvalidArgument if the number of elements is known; otherwise, the pass throws it at its first
/// element. Caches start empty. With one worker, returns `dataset` for every policy. Throws
/// kInvalidArgument unless 0 <= index < num_workers.
Dataset auto_shard(const Dataset& dataset, int num_workers, int index, AutoShardPolicy policy);

namespace internal {

/// Returns true if every source at the start of the pipeline reads files.
bool begins_at_files(const DatasetSource& source);

}  // namespace internal
}  // namespace tutti
