// Datasets: a source, wrapped by one decorator per call; the part of each of several workers.
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

/// One pass over a dataset. Used by one thread.
class ElementIterator {
 public:
  virtual ~ElementIterator() = default;
  /// The next element; nothing at the end, and from then on.
  virtual std::optional<Element> next() = 0;
  /// Leaves out `count` elements (fewer if the end comes first): how a position is restored.
  /// Default: calls next().
  virtual void skip(std::int64_t count);
};

/// The elements of a whole pass that a source yields: numbers index, index + count, ...
struct PassShard {
  std::int64_t count = 1;
  std::int64_t index = 0;
};

class DatasetSource;
/// A source that datasets share.
using SourcePtr = std::shared_ptr<const DatasetSource>;

/// The files that a source reads one by one, so that workers can share them.
struct SourceFiles {
  /// Nothing: not known before they are read; kInfinite: they never end.
  std::optional<std::int64_t> count;
  /// The same source over files index, index + count, ...; without elements when there are none.
  std::function<SourcePtr(std::int64_t count, std::int64_t index)> shard;
};

/// What can be iterated. Immutable; threads: iterate() from any.
class DatasetSource {
 public:
  virtual ~DatasetSource() = default;
  /// Pass number `epoch`: only what depends on the pass (shuffles) looks at it.
  virtual std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const = 0;
  /// Elements of a pass; nothing when unknown. kInfinite when it never ends.
  virtual std::optional<std::int64_t> cardinality() const = 0;
  /// Rows of a full batch, found by tf's rule: set by batch(), kept by what only selects or
  /// reorders, unknown after map().
  virtual std::optional<std::int64_t> batch_size() const { return std::nullopt; }
  /// How many times examples were batched into an element: 0 for single examples, 1 for batches.
  /// Nothing when unknown: after map() and interleave(), of generators and from_tensors(), of
  /// sources that do not tell.
  virtual std::optional<int> batch_depth() const { return std::nullopt; }
  /// Whether the last batch may have fewer rows.
  virtual bool may_end_in_partial_batch() const { return false; }
  /// The shard of the whole pass that this source yields, where workers share its files or
  /// elements. Keys of random numbers (augment(), map()) hold the number of the element in the
  /// whole pass, so that no two workers draw the same numbers.
  virtual PassShard pass_shard() const { return {}; }

  /// How pipelines are rewritten (auto_shard()). The sources that this one reads from, in order;
  /// none for those that stand at the beginning and for those that do not tell.
  virtual std::vector<SourcePtr> inputs() const { return {}; }
  /// The same over other inputs, as many as inputs() gives.
  virtual SourcePtr with_inputs(std::vector<SourcePtr> inputs) const;
  /// Nothing when it reads no files, or does not tell.
  virtual std::optional<SourceFiles> files() const { return std::nullopt; }
};

/// Without end: repeat() for ever, take() all; the cardinality of what never ends.
inline constexpr std::int64_t kInfinite = -1;
/// In a padded shape: as large as the largest element of the batch.
inline constexpr std::int64_t kLargest = -1;

/// Of Dataset::map().
struct MapOptions {
  /// Elements worked on at once, in order all the same; 1: on the caller's thread.
  int num_parallel_calls = 1;
};
/// Of Dataset::batch().
struct BatchOptions {
  /// Whether a last batch with fewer rows is left out.
  bool drop_remainder = false;
};
/// Of Dataset::padded_batch().
struct PaddedBatchOptions {
  bool drop_remainder = false;
  /// One shape per component, kLargest: as in the largest element of the batch. Components without
  /// one: kLargest everywhere.
  std::vector<std::vector<std::int64_t>> padded_shapes = {};
  /// One number per component; components without one: 0.
  std::vector<double> padding_values = {};
};
/// Of Dataset::interleave().
struct InterleaveOptions {
  /// Datasets read in turn.
  std::int64_t cycle_length = 1;
  /// Elements read from one before the turn goes on.
  std::int64_t block_length = 1;
};
/// Of Dataset::pack().
struct PackOptions {
  /// Numbers from the beginning of a row to that of the next; default: the length, so that each
  /// number is in one row.
  std::optional<std::int64_t> shift = std::nullopt;
  /// A number that is put behind each element: where a document ends. Default: elements are parts
  /// of one stream.
  std::optional<std::int64_t> end = std::nullopt;
  /// Whether rows have labels: the number behind each of theirs.
  bool next_as_labels = false;
};
/// Of Dataset::shuffle().
struct ShuffleOptions {
  std::uint64_t seed = 0;
  /// Whether each pass has an order of its own.
  bool reshuffle_each_iteration = true;
};

/// A value handle over a shared source. Each call returns a new dataset that wraps this one.
/// tf.data.Dataset.
class Dataset {
 public:
  explicit Dataset(SourcePtr source) : source_(std::move(source)) {}

  /// Element i is row i of every tensor. Throws kInvalidArgument when their first dimensions
  /// differ.
  static Dataset from_tensor_slices(std::vector<Tensor> tensors);
  /// `from_tensor_slices(x, y)`.
  template <std::convertible_to<Tensor>... Tensors>
  static Dataset from_tensor_slices(const Tensors&... tensors) requires(sizeof...(Tensors) > 0) {
    return from_tensor_slices(std::vector<Tensor>{tensors...});
  }
  /// One element.
  static Dataset from_tensors(std::vector<Tensor> tensors);
  /// int64 scalars begin, begin + step, ... below end (above end for a negative step). Step 0
  /// throws kInvalidArgument.
  static Dataset range(std::int64_t end);
  static Dataset range(std::int64_t begin, std::int64_t end, std::int64_t step = 1);
  /// `make` is called once per pass and returns a function that yields the elements, nothing at the
  /// end.
  using Generator = std::function<std::optional<Element>()>;
  static Dataset from_generator(std::function<Generator(std::uint64_t epoch)> make);
  /// Element i holds the components of element i of every dataset, under their own names where
  /// these are all different, else under the default names; ends with the shortest. Throws
  /// kInvalidArgument for no dataset.
  static Dataset zip(std::vector<Dataset> datasets);

  /// Order keyed by (seed, epoch): the element at each place is drawn from a buffer of
  /// `buffer_size` elements.
  Dataset shuffle(std::int64_t buffer_size, ShuffleOptions options = {}) const;
  Dataset shuffle(std::int64_t buffer_size, std::uint64_t seed) const {
    return shuffle(buffer_size, ShuffleOptions{.seed = seed});
  }
  /// Stacks `size` consecutive elements; `size` is the GLOBAL batch. Throws kInvalidArgument when
  /// shapes differ, naming component and both.
  Dataset batch(std::int64_t size, BatchOptions options = {}) const;
  /// batch() of elements whose components differ in size (not in rank): each is padded behind its
  /// end. Throws kInvalidArgument for an element larger than its padded shape.
  Dataset padded_batch(std::int64_t size, PaddedBatchOptions options = {}) const;
  /// Elements of numbers [n], n of any size (documents, or parts of a stream), joined one behind
  /// the other and cut into rows int64 [length]; what is left at the end and fills no row is left
  /// out. Windows over a stream of tokens: `.shift`; what a language model is trained on:
  /// `.next_as_labels`. Throws kInvalidArgument for other elements.
  Dataset pack(std::int64_t length, PackOptions options = {}) const;
  /// The rows of every element, one by one; throws kFailedPrecondition where elements have no rows.
  Dataset unbatch() const;
  /// `count` times, each a new epoch for what is below; kInfinite (default): for ever, or until a
  /// pass has no element.
  Dataset repeat(std::int64_t count = kInfinite) const;
  /// Elements index, index + count, ...; throws kInvalidArgument unless 0 <= index < count.
  Dataset shard(std::int64_t count, std::int64_t index) const;
  /// fn must be a function of the element alone (skip() leaves it out) and, with several calls at
  /// once, safe on several threads. What it throws comes out of next() in the element's place; the
  /// pass can go on after that. Random numbers that fn draws without a key (random_uniform(shape),
  /// layers in training mode) are keyed by the global seed, this call of map(), the epoch and the
  /// element, whatever thread draws them; so are those of every other function below, and of
  /// generators. augment() has a seed of its own.
  Dataset map(std::function<Element(const Element&)> fn, MapOptions options = {}) const;
  /// The elements for which `predicate` is true.
  Dataset filter(std::function<bool(const Element&)> predicate) const;
  /// Ends before the first element that `predicate` refuses.
  Dataset take_while(std::function<bool(const Element&)> predicate) const;
  /// Elements {index int64 [] from `start`, the components}.
  Dataset enumerate(std::int64_t start = 0) const;
  /// `make` turns each element into a dataset; the elements of `cycle_length` of them come in turn,
  /// `block_length` at a time, in tf's order. The datasets get this pass's epoch. `make` must be a
  /// function of the element alone.
  Dataset interleave(std::function<Dataset(const Element&)> make,
                     InterleaveOptions options = {}) const;
  /// The elements of the first dataset made, then those of the second, ...
  Dataset flat_map(std::function<Dataset(const Element&)> make) const;
  /// The first `count` elements (kInfinite: all); all but those. Other negative numbers throw
  /// kInvalidArgument.
  Dataset take(std::int64_t count) const;
  Dataset skip(std::int64_t count) const;
  /// These elements, then those of `next`. An element of `next` with other components or types
  /// throws kInvalidArgument.
  Dataset concatenate(const Dataset& next) const;
  /// Keeps the elements of the first whole pass in memory and yields them in every later one.
  Dataset cache() const;
  /// A thread reads up to `depth` elements ahead (0: no thread). Exceptions surface in next().
  Dataset prefetch(int depth) const;

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch = 0) const {
    return source_->iterate(epoch);
  }
  std::optional<std::int64_t> cardinality() const { return source_->cardinality(); }
  std::optional<std::int64_t> batch_size() const { return source_->batch_size(); }
  const DatasetSource& source() const { return *source_; }
  const SourcePtr& shared_source() const { return source_; }

  /// Range-for over one pass of epoch 0.
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

/// tf.data.experimental.AutoShardPolicy (without HINT: docs/deviations.md).
enum class AutoShardPolicy {
  /// kFile where the dataset begins at files, at least as many as there are workers; else kData.
  kAuto,
  /// Worker i reads files i, i + workers, ... A worker beyond the number of files has no elements.
  kFile,
  /// Every worker reads everything and keeps elements i, i + workers, ...
  kData,
  /// Every worker sees all elements.
  kOff
};

/// "AUTO", "FILE", "DATA", "OFF", as tf writes them.
std::string_view to_string(AutoShardPolicy policy);

/// What a policy means for a dataset, and why.
struct AutoShardChoice {
  AutoShardPolicy policy = AutoShardPolicy::kOff;  // never kAuto
  std::string reason = {};
};

/// Looks for the beginning of `dataset`: through every decorator, all parts of zip() and
/// concatenate(), and the first dataset of interleave(), down to the sources that read files. One
/// line of the log has the choice of kAuto and the reason, a warning where several workers read
/// everything (kData). Throws kNotFound for kFile when a part
/// begins elsewhere, or at a source that does not tell.
AutoShardChoice choose_auto_shard(const Dataset& dataset, int num_workers, AutoShardPolicy policy);

/// The part of worker `index`, a pipeline like `dataset`, by choose_auto_shard(). kFile exchanges
/// every source of files for one over the worker's files, in their order; what zip() pairs stays
/// paired where the files of one number have as many elements. kData keeps every num_workers-th
/// element behind the last step that is not prefetch(), which reads ahead what was kept; a pass
/// that has elements, but fewer than workers, throws kInvalidArgument: here where their number is
/// known, else at its first element. Caches are filled anew. One worker gets `dataset` under every
/// policy. Throws kInvalidArgument unless 0 <= index < num_workers.
Dataset auto_shard(const Dataset& dataset, int num_workers, int index, AutoShardPolicy policy);

namespace internal {

/// Whether every beginning of the pipeline is a source of files.
bool begins_at_files(const DatasetSource& source);

}  // namespace internal
}  // namespace tutti
