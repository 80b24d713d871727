// Implements Element and Dataset: iteration, sources (numbers, generators, tensors), unbatch, take,
// skip, repeat, shuffle and cache.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/dataset.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "core/names.h"
#include "data/data_threads.h"
#include "data/forwarding_source.h"
#include "tutti/core/random.h"
#include "tutti/core/sync.h"
#include "tutti/tensor/device_scope.h"

namespace tutti {

void ElementIterator::skip(std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (!next()) return;
  }
}

SourcePtr DatasetSource::with_inputs(std::vector<SourcePtr>) const {
  fail(ErrorCode::kUnimplemented,
       "DatasetSource::with_inputs: the inputs of this source cannot be replaced; expected a "
       "source that overrides inputs() and with_inputs() together");
}

Dataset::Iterator::Iterator(std::shared_ptr<ElementIterator> elements)
    : elements_(std::move(elements)) {
  ++*this;
}

Dataset::Iterator& Dataset::Iterator::operator++() {
  const NoDeviceScope elements_are_on_the_host;
  current_ = elements_->next();
  return *this;
}

Dataset::Iterator Dataset::begin() const { return Iterator(iterate()); }

// Dataset::range().

namespace {

// Computes with unsigned numbers, because the difference of two int64 numbers may overflow.
std::int64_t range_length(std::int64_t begin, std::int64_t end, std::int64_t step) {
  const auto low = static_cast<std::uint64_t>(step > 0 ? begin : end);
  const auto high = static_cast<std::uint64_t>(step > 0 ? end : begin);
  if (step > 0 ? begin >= end : begin <= end) return 0;
  const auto stride =
      step > 0 ? static_cast<std::uint64_t>(step) : -static_cast<std::uint64_t>(step);
  const std::uint64_t length = (high - low - 1) / stride + 1;
  return static_cast<std::int64_t>(std::min<std::uint64_t>(length, INT64_MAX));
}

/// Source whose elements are computed from their indices.
class IndexedSource : public DatasetSource {
 public:
  using At = std::function<Element(std::int64_t index)>;
  IndexedSource(std::int64_t length, std::optional<int> batch_depth, At at)
      : length_(length), batch_depth_(batch_depth), at_(std::move(at)) {}

  std::unique_ptr<ElementIterator> iterate(std::uint64_t) const override {
    return std::make_unique<internal::IndexedIterator>(length_, at_);
  }
  std::optional<std::int64_t> cardinality() const override { return length_; }
  std::optional<int> batch_depth() const override { return batch_depth_; }

 private:
  const std::int64_t length_;
  const std::optional<int> batch_depth_;
  const At at_;
};

}  // namespace

Dataset Dataset::range(std::int64_t end) { return range(0, end); }

Dataset Dataset::range(std::int64_t begin, std::int64_t end, std::int64_t step) {
  internal::require(step != 0, "Dataset::range: expected a non-zero step, got 0");
  return Dataset(std::make_shared<IndexedSource>(
      range_length(begin, end, step), 0, [begin, step](std::int64_t index) {
        return Element({Tensor::from<std::int64_t>({}, {begin + index * step})});
      }));
}

// Dataset::from_generator().

namespace {

class GeneratorIterator : public ElementIterator {
 public:
  GeneratorIterator(Dataset::Generator generate, internal::PassRandom random)
      : generate_(std::move(generate)), random_(random) {}

  std::optional<Element> next() override {
    if (!generate_) return std::nullopt;
    const RandomContextScope scope(random_.at(next_number_++));
    std::optional<Element> element = generate_();
    if (!element) generate_ = nullptr;  // the function must not be called again
    return element;
  }

 private:
  Dataset::Generator generate_;
  internal::PassRandom random_;
  std::uint64_t next_number_ = 0;
};

class GeneratorSource : public DatasetSource {
 public:
  using Make = std::function<Dataset::Generator(std::uint64_t epoch)>;
  explicit GeneratorSource(Make make) : make_(std::move(make)) {}

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    const internal::PassRandom random = random_.of_pass(epoch);
    const RandomContextScope before_the_first(random.at(~std::uint64_t{0}));
    Dataset::Generator generate = make_(epoch);
    internal::require(
        generate,
        "Dataset::from_generator: expected a function that yields elements, got an empty one");
    return std::make_unique<GeneratorIterator>(std::move(generate), random);
  }
  std::optional<std::int64_t> cardinality() const override { return std::nullopt; }

 private:
  Make make_;
  internal::FunctionRandom random_;
};

}  // namespace

Dataset Dataset::from_generator(std::function<Generator(std::uint64_t epoch)> make) {
  internal::require_function(make, "Dataset::from_generator");
  return Dataset(std::make_shared<GeneratorSource>(std::move(make)));
}

// Dataset::from_tensor_slices() and from_tensors().

namespace {

/// Returns `element` with each tensor replaced by make(tensor).
template <class Make>
Element with_each_tensor(const Element& element, Make make) {
  std::vector<Tensor> tensors;
  tensors.reserve(element.size());
  for (const Tensor& tensor : element.tensors()) tensors.push_back(make(tensor));
  return element.with_tensors(std::move(tensors));
}

/// Returns row `row` of every component; the components keep their names.
Element row_of(const Element& batch, std::int64_t row) {
  return with_each_tensor(batch, [&](const Tensor& tensor) {
    return tensor.detached_rows(row, 1).detached_reshape(tensor.shape().without_axis(0));
  });
}

Element make_element(std::vector<Tensor> tensors, const char* who) {
  internal::require(!tensors.empty(), who, ": expected at least one tensor, got none");
  return Element(std::move(tensors));
}

}  // namespace

Dataset Dataset::from_tensor_slices(std::vector<Tensor> tensors) {
  constexpr const char* kWho = "Dataset::from_tensor_slices";
  Element whole = make_element(std::move(tensors), kWho);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const Shape& shape = whole[i].shape();
    internal::require(shape.rank() != 0 && shape[0] == whole[0].shape()[0], kWho,
                      ": expected tensors with equal first dimensions, got ", whole[0].shape(),
                      " for component 0 and ", shape, " for component ", i);
  }
  const std::int64_t rows = whole.rows();
  return Dataset(std::make_shared<IndexedSource>(
      rows, 0, [whole = std::move(whole)](std::int64_t row) { return row_of(whole, row); }));
}

Dataset Dataset::from_tensors(std::vector<Tensor> tensors) {
  Element only = make_element(std::move(tensors), "Dataset::from_tensors");
  return Dataset(std::make_shared<IndexedSource>(
      1, std::nullopt, [only = std::move(only)](std::int64_t) { return only; }));
}

// Dataset::unbatch().

namespace {

class UnbatchIterator : public ElementIterator {
 public:
  explicit UnbatchIterator(std::unique_ptr<ElementIterator> below) : below_(std::move(below)) {}

  std::optional<Element> next() override {
    if (!find_row()) return std::nullopt;
    const Element row = row_of(*batch_, row_);
    ++row_;
    return row.placed_in(0, -1);  // no longer part of a global batch
  }

  void skip(std::int64_t count) override {
    while (count > 0 && find_row()) {
      const std::int64_t skipped = std::min(count, batch_->rows() - row_);
      row_ += skipped;
      count -= skipped;
    }
  }

 private:
  // Reads batches until row_ is a row of batch_; returns false at the end.
  bool find_row() {
    while (!batch_ || row_ == batch_->rows()) {
      batch_ = below_->next();
      row_ = 0;
      if (!batch_) return false;
    }
    return true;
  }

  std::unique_ptr<ElementIterator> below_;
  std::optional<Element> batch_;
  std::int64_t row_ = 0;
};

class UnbatchSource : public internal::ForwardingSource {
 public:
  using ForwardingSource::ForwardingSource;

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    return std::make_unique<UnbatchIterator>(below().iterate(epoch));
  }
  SourcePtr over(SourcePtr below) const override {
    return std::make_shared<UnbatchSource>(std::move(below));
  }
  std::optional<std::int64_t> cardinality() const override {
    const std::optional<std::int64_t> length = below().cardinality();
    return length == kInfinite || length == 0 ? length : std::nullopt;
  }
  std::optional<std::int64_t> batch_size() const override { return std::nullopt; }
  std::optional<int> batch_depth() const override {
    const std::optional<int> depth = below().batch_depth();
    return depth ? std::optional(std::max(*depth - 1, 0)) : depth;
  }
  bool may_end_in_partial_batch() const override { return false; }
};

}  // namespace

Dataset Dataset::unbatch() const { return Dataset(std::make_shared<UnbatchSource>(source_)); }

// Dataset::take() and skip().

namespace {

void require_count(std::int64_t count, const char* who) {
  internal::require(count >= 0 || count == kInfinite, who,
                    ": expected a count >= 0, or kInfinite, got ", count);
}

class TakeIterator : public internal::ForwardingIterator {
 public:
  TakeIterator(std::unique_ptr<ElementIterator> below, std::int64_t count)
      : ForwardingIterator(std::move(below)), left_(count) {}

  std::optional<Element> next() override {
    if (left_ == 0) return std::nullopt;
    --left_;
    return below().next();
  }

  void skip(std::int64_t count) override {
    if (count < 1) return;
    const std::int64_t skipped = std::min(count, left_);
    below().skip(skipped);
    left_ -= skipped;
  }

 private:
  std::int64_t left_;
};

class TakeSource : public internal::Decorator<TakeSource, TakeIterator, std::int64_t> {
 public:
  using Decorator::Decorator;

  std::optional<std::int64_t> cardinality() const override {
    const std::optional<std::int64_t> length = below().cardinality();
    if (argument() == 0) return 0;
    if (!length) return std::nullopt;
    return *length == kInfinite ? argument() : std::min(*length, argument());
  }
};

class SkipIterator : public internal::ForwardingIterator {
 public:
  SkipIterator(std::unique_ptr<ElementIterator> below, std::int64_t count)
      : ForwardingIterator(std::move(below)), pending_(count) {}

  std::optional<Element> next() override {
    below().skip(std::exchange(pending_, 0));
    return below().next();
  }

  void skip(std::int64_t count) override {
    if (count > 0) pending_ = internal::saturating_sum(pending_, count);
  }

 private:
  std::int64_t pending_;
};

class SkipSource : public internal::Decorator<SkipSource, SkipIterator, std::int64_t> {
 public:
  using Decorator::Decorator;

  std::optional<std::int64_t> cardinality() const override {
    const std::optional<std::int64_t> length = below().cardinality();
    if (!length || *length == kInfinite) return length;
    return std::max<std::int64_t>(*length - argument(), 0);
  }
};

}  // namespace

Dataset Dataset::take(std::int64_t count) const {
  require_count(count, "Dataset::take");
  if (count == kInfinite) return *this;
  return Dataset(std::make_shared<TakeSource>(source_, count));
}

Dataset Dataset::skip(std::int64_t count) const {
  require_count(count, "Dataset::skip");
  if (count == kInfinite) return take(0);
  return Dataset(std::make_shared<SkipSource>(source_, count));
}

// Dataset::repeat(): each pass is a new epoch for the sources that it wraps.

namespace {

class RepeatIterator : public ElementIterator {
 public:
  /// Iterates over passes of `below`; pass i reads epoch first_epoch + i of `below`.
  RepeatIterator(std::shared_ptr<const DatasetSource> below, std::int64_t count,
                 std::uint64_t first_epoch)
      : below_(std::move(below)), count_(count), first_epoch_(first_epoch) {}

  std::optional<Element> next() override {
    while (has_pass()) {
      if (!pass_) start_pass();
      std::optional<Element> element = pass_->next();
      if (element) {
        ++taken_;
        return element;
      }
      end_pass();
    }
    return std::nullopt;
  }

  void skip(std::int64_t count) override {
    const std::optional<std::int64_t> length = below_->cardinality();
    if (!length || *length == 0) return ElementIterator::skip(count);
    if (*length != kInfinite && count > *length - taken_) {
      count -= *length - taken_;
      pass_number_ = internal::saturating_sum(pass_number_, count / *length);
      pass_number_ = internal::saturating_sum(pass_number_, 1);
      count %= *length;
      pass_.reset();
      taken_ = 0;
    }
    if (count < 1 || !has_pass()) return;
    if (!pass_) start_pass();
    pass_->skip(count);
    taken_ += count;
  }

 private:
  bool has_pass() const { return count_ == kInfinite || pass_number_ < count_; }

  void start_pass() {
    pass_ = below_->iterate(first_epoch_ + static_cast<std::uint64_t>(pass_number_));
    taken_ = 0;
  }

  void end_pass() {
    const bool was_empty = taken_ == 0;
    pass_.reset();
    ++pass_number_;
    // Stops here, because endless repetition of an empty dataset would never return.
    if (was_empty && count_ == kInfinite) count_ = 0;
  }

  std::shared_ptr<const DatasetSource> below_;
  std::int64_t count_;
  std::uint64_t first_epoch_;
  std::int64_t pass_number_ = 0;
  std::int64_t taken_ = 0;  // number of elements yielded or skipped in this pass
  std::unique_ptr<ElementIterator> pass_;
};

class RepeatSource : public internal::SourceWith<RepeatSource, std::int64_t> {
 public:
  using SourceWith::SourceWith;

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    // Passes of an endless dataset must not share epochs of the input, so they begin at multiples
    // of 2^32.
    const std::int64_t count = argument();
    const std::uint64_t first =
        count == kInfinite ? epoch << 32 : epoch * static_cast<std::uint64_t>(count);
    return std::make_unique<RepeatIterator>(shared_below(), count, first);
  }

  std::optional<std::int64_t> cardinality() const override {
    const std::optional<std::int64_t> length = below().cardinality();
    if (argument() == 0 || length == 0) return 0;
    if (!length) return std::nullopt;
    if (argument() == kInfinite || *length == kInfinite) return kInfinite;
    return internal::saturating_product(*length, argument());
  }
};

}  // namespace

Dataset Dataset::repeat(std::int64_t count) const {
  internal::require(count >= 0 || count == kInfinite,
                    "Dataset::repeat: expected a count >= 0, or kInfinite, got ", count);
  return Dataset(std::make_shared<RepeatSource>(source_, count));
}

// Dataset::shuffle(). The buffer holds up to `buffer_size` elements. Each draw first fills the
// buffer from the input source, then takes a random element and moves the last element to its
// place. Draw d uses random number d of the stream, so that the order is a pure function of seed,
// epoch and buffer size.

namespace {

struct Shuffling {
  std::size_t buffer_size = 1;
  ShuffleOptions options = {};
};

class ShuffleIterator : public ElementIterator {
 public:
  ShuffleIterator(std::unique_ptr<ElementIterator> below, const Shuffling& shuffling,
                  std::uint64_t epoch)
      : below_(std::move(below)),
        buffer_size_(shuffling.buffer_size),
        random_({.seed = shuffling.options.seed,
                 .purpose = kShufflePurpose,
                 .a = shuffling.options.reshuffle_each_iteration ? epoch : 0}) {}

  std::optional<Element> next() override {
    fill();
    if (buffer_.empty()) return std::nullopt;
    const auto place = static_cast<std::size_t>(random_.below(draw_++, buffer_.size()));
    std::swap(buffer_[place], buffer_.back());
    Element element = std::move(buffer_.back());
    buffer_.pop_back();
    return element;
  }

 private:
  void fill() {
    while (below_ && buffer_.size() < buffer_size_) {
      std::optional<Element> element = below_->next();
      if (element) {
        buffer_.push_back(std::move(*element));
      } else {
        below_.reset();
      }
    }
  }

  std::unique_ptr<ElementIterator> below_;  // null once exhausted
  std::size_t buffer_size_;
  RandomStream random_;
  std::uint64_t draw_ = 0;
  std::vector<Element> buffer_;
};

class ShuffleSource : public internal::Decorator<ShuffleSource, ShuffleIterator, Shuffling> {
 public:
  using Decorator::Decorator;
};

}  // namespace

Dataset Dataset::shuffle(std::int64_t buffer_size, ShuffleOptions options) const {
  internal::require(buffer_size >= 1, "Dataset::shuffle: expected a buffer_size >= 1, got ",
                    buffer_size);
  return Dataset(std::make_shared<ShuffleSource>(
      source_, Shuffling{static_cast<std::size_t>(buffer_size), options}));
}

// Dataset::cache().

namespace {

using Elements = std::vector<Element>;

/// State that a cached dataset and its iterators share.
class CacheStore {
 public:
  std::shared_ptr<const Elements> find() const {
    MutexLock lock(mutex_);
    return elements_;
  }

  /// Stores the elements of the first complete pass; ignores those of later passes.
  void offer(Elements elements) {
    MutexLock lock(mutex_);
    if (!elements_) elements_ = std::make_shared<const Elements>(std::move(elements));
  }

 private:
  mutable Mutex mutex_;
  std::shared_ptr<const Elements> elements_ TUTTI_GUARDED_BY(mutex_);
};

/// Iterator that yields elements and keeps them. It uses the default skip(), which calls next(),
/// because later passes need the skipped elements.
class FillingIterator : public ElementIterator {
 public:
  FillingIterator(std::unique_ptr<ElementIterator> below, std::shared_ptr<CacheStore> store)
      : below_(std::move(below)), store_(std::move(store)) {}

  std::optional<Element> next() override {
    if (ended_) return std::nullopt;
    std::optional<Element> element = next_below();
    if (element) {
      if (whole_) kept_.push_back(*element);
    } else {
      ended_ = true;
      if (whole_) store_->offer(std::move(kept_));
    }
    return element;
  }

 private:
  // Returns the next element of below_. On an exception, marks the pass as incomplete, because an
  // element is missing.
  std::optional<Element> next_below() {
    try {
      return below_->next();
    } catch (...) {
      whole_ = false;
      kept_.clear();
      throw;
    }
  }

  std::unique_ptr<ElementIterator> below_;
  std::shared_ptr<CacheStore> store_;
  Elements kept_;
  bool whole_ = true;
  bool ended_ = false;
};

class CacheSource : public internal::ForwardingSource {
 public:
  explicit CacheSource(std::shared_ptr<const DatasetSource> below)
      : ForwardingSource(std::move(below)), store_(std::make_shared<CacheStore>()) {}

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    if (auto kept = store_->find()) {
      return std::make_unique<internal::IndexedIterator>(std::ssize(*kept), [kept](auto index) {
        return (*kept)[static_cast<std::size_t>(index)];
      });
    }
    return std::make_unique<FillingIterator>(below().iterate(epoch), store_);
  }
  /// Returns a cache of `below` with a new store, because a different input has different elements.
  SourcePtr over(SourcePtr below) const override {
    return std::make_shared<CacheSource>(std::move(below));
  }

 private:
  std::shared_ptr<CacheStore> store_;
};

}  // namespace

Dataset Dataset::cache() const { return Dataset(std::make_shared<CacheSource>(source_)); }

// Element: a list of named components, and its position in a global batch.

namespace {

using Names = std::vector<std::string>;

std::shared_ptr<const Names> make_default_names(std::size_t count) {
  static constexpr std::array kFirst = {"features", "labels", "sample_weight"};
  Names names;
  for (std::size_t i = 0; i < count; ++i) {
    names.push_back(i < kFirst.size() ? std::string(kFirst[i]) : concat("component_", i));
  }
  return std::make_shared<const Names>(std::move(names));
}

// Programs create millions of elements, and nearly all have default names, so the usual lists of
// names are created once and shared.
std::shared_ptr<const Names> default_names(std::size_t count) {
  static const std::array kUsual = {make_default_names(0), make_default_names(1),
                                    make_default_names(2), make_default_names(3)};
  return count < kUsual.size() ? kUsual[count] : make_default_names(count);
}

void require_defined(const std::vector<Tensor>& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    internal::require(tensors[i].defined(), "Element: component ", i, " is an undefined tensor");
  }
}

}  // namespace

Element::Element() : names_(default_names(0)) {}

Element::Element(std::vector<Tensor> tensors)
    : tensors_(std::move(tensors)), names_(default_names(tensors_.size())) {
  require_defined(tensors_);
}

Element::Element(std::vector<Tensor> tensors, std::vector<std::string> names)
    : tensors_(std::move(tensors)) {
  require_defined(tensors_);
  internal::require(names.size() == tensors_.size(),
                    "Element: expected one name per component, got ", names.size(), " names for ",
                    tensors_.size(), " components");
  std::set<std::string> seen;
  for (const std::string& name : names) {
    if (!seen.insert(name).second) {
      fail(ErrorCode::kInvalidArgument, "Element: the name '", name, "' occurs twice in [",
           join(names), "]");
    }
  }
  names_ = std::make_shared<const Names>(std::move(names));
}

Element Element::with_tensors(std::vector<Tensor> tensors) const {
  TUTTI_CHECK(tensors.size() == tensors_.size(), "Element::with_tensors: expected ",
              tensors_.size(), " components, got ", tensors.size());
  Element element = *this;
  element.tensors_ = std::move(tensors);
  return element;
}

const Tensor& Element::operator[](std::size_t index) const {
  if (index >= tensors_.size()) {
    fail(ErrorCode::kOutOfRange, "Element: there is no component ", index, "; expected one of the ",
         tensors_.size(), " components [", join(*names_), "]");
  }
  return tensors_[index];
}

const Tensor& Element::at(const std::string& name) const {
  auto found = std::find(names_->begin(), names_->end(), name);
  if (found == names_->end()) {
    fail(ErrorCode::kNotFound, "Element: there is no component named '", name,
         "'; expected one of [", join(*names_), "]");
  }
  return tensors_[static_cast<std::size_t>(found - names_->begin())];
}

bool Element::has(const std::string& name) const {
  return std::find(names_->begin(), names_->end(), name) != names_->end();
}

std::int64_t Element::rows() const {
  std::int64_t rows = -1;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const Shape& shape = tensors_[i].shape();
    if (shape.rank() == 0) {
      fail(ErrorCode::kFailedPrecondition, "Element::rows: not batched: component '", (*names_)[i],
           "' is a scalar; expected a first dimension; call batch()");
    }
    if (rows >= 0 && shape[0] != rows) {
      fail(ErrorCode::kFailedPrecondition, "Element::rows: not batched: component '", (*names_)[i],
           "' has shape ", shape, "; expected ", rows, " rows as in '", (*names_)[0],
           "'; call batch()");
    }
    rows = shape[0];
  }
  if (rows < 0)
    fail(ErrorCode::kFailedPrecondition,
         "Element::rows: expected at least one component, got none");
  return rows;
}

Element Element::slice_rows(std::int64_t first, std::int64_t count) const {
  const std::int64_t available = rows();
  internal::require(first >= 0 && count >= 0 && first <= available && count <= available - first,
                    "Element::slice_rows: expected rows within 0 .. ", available, ", got first ",
                    first, ", count ", count);
  Element slice = with_each_tensor(
      *this, [&](const Tensor& tensor) { return tensor.detached_rows(first, count); });
  slice.global_rows_ = global_rows_ >= 0 ? global_rows_ : available;
  slice.first_row_ = first_row_ + first;
  return slice;
}

Element Element::to(Device device) const {
  return with_each_tensor(*this, [&](const Tensor& tensor) { return tensor.to(device); });
}

const Tensor& Batch::labels() const {
  if (!has_labels()) {
    fail(ErrorCode::kNotFound, "Batch::labels: expected elements with at least 2 components, got [",
         join(element_.names()), "]");
  }
  return element_[1];
}

Tensor Batch::sample_weight() const {
  return element_.has("sample_weight") ? element_.at("sample_weight") : Tensor();
}

}  // namespace tutti
