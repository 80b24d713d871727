// Elements kept in memory: to be drawn in another order, keyed by (seed, epoch), or for later
// passes.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "data/forwarding_source.h"
#include "tutti/core/random.h"
#include "tutti/core/sync.h"

// The buffer holds up to `buffer_size` elements in places 0, 1, ... Each draw first fills the free
// places from below, takes the element at a random place and moves the last element of the buffer
// there. Draw d uses random number d of the stream, so that the order is a pure function of seed,
// epoch and buffer size.

namespace tutti {
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

  std::unique_ptr<ElementIterator> below_;  // null once it has ended
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
  if (buffer_size < 1) {
    fail(ErrorCode::kInvalidArgument,
         "Dataset::shuffle: expected a buffer of at least 1 element, got ", buffer_size);
  }
  return Dataset(std::make_shared<ShuffleSource>(
      source_, Shuffling{static_cast<std::size_t>(buffer_size), options}));
}

// The elements of the first whole pass, kept in memory.

namespace {

using Elements = std::vector<Element>;

/// Shared by a cached dataset and its iterators.
class CacheStore {
 public:
  std::shared_ptr<const Elements> find() const {
    MutexLock lock(mutex_);
    return elements_;
  }

  /// The first whole pass stays.
  void offer(Elements elements) {
    MutexLock lock(mutex_);
    if (!elements_) elements_ = std::make_shared<const Elements>(std::move(elements));
  }

 private:
  mutable Mutex mutex_;
  std::shared_ptr<const Elements> elements_ TUTTI_GUARDED_BY(mutex_);
};

/// Passes elements on and keeps them. skip() is the default one, by next(): what is left out once
/// is wanted later.
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
  // A pass in which an element was lost is no whole pass.
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
  /// Other elements need a store of their own.
  SourcePtr over(SourcePtr below) const override {
    return std::make_shared<CacheSource>(std::move(below));
  }

 private:
  std::shared_ptr<CacheStore> store_;
};

}  // namespace

Dataset Dataset::cache() const { return Dataset(std::make_shared<CacheSource>(source_)); }

}  // namespace tutti
