// Shuffling with a buffer, keyed by (seed, epoch).
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "tutti/core/random.h"
#include "tutti/data/forwarding_source.h"

// The buffer holds up to `buffer_size` elements in places 0, 1, ... Each draw first fills the free
// places from below, takes the element at a random place and moves the last element of the buffer
// there. Draw d uses random number d of the stream, so that the order is a pure function of seed,
// epoch and buffer size.

namespace tutti {
namespace {

class ShuffleIterator : public ElementIterator {
 public:
  ShuffleIterator(std::unique_ptr<ElementIterator> below, std::size_t buffer_size,
                  const RandomKey& key)
      : below_(std::move(below)), buffer_size_(buffer_size), random_(key) {}

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

class ShuffleSource : public internal::ForwardingSource {
 public:
  ShuffleSource(std::shared_ptr<const DatasetSource> below, std::int64_t buffer_size,
                const ShuffleOptions& options)
      : ForwardingSource(std::move(below)), buffer_size_(buffer_size), options_(options) {}

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    RandomKey key;
    key.seed = options_.seed;
    key.purpose = kShufflePurpose;
    key.a = options_.reshuffle_each_iteration ? epoch : 0;
    return std::make_unique<ShuffleIterator>(below().iterate(epoch),
                                             static_cast<std::size_t>(buffer_size_), key);
  }
  SourcePtr over(SourcePtr below) const override {
    return std::make_shared<ShuffleSource>(std::move(below), buffer_size_, options_);
  }

 private:
  std::int64_t buffer_size_;
  ShuffleOptions options_;
};

}  // namespace

Dataset Dataset::shuffle(std::int64_t buffer_size, ShuffleOptions options) const {
  if (buffer_size < 1) {
    fail(ErrorCode::kInvalidArgument,
         "Dataset::shuffle: expected a buffer of at least 1 element, got ", buffer_size);
  }
  return Dataset(std::make_shared<ShuffleSource>(source_, buffer_size, options));
}

}  // namespace tutti
