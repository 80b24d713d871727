// Dataset::map, filter, take_while, enumerate and prefetch.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <utility>
#include <vector>

#include "core/names.h"
#include "data/data_threads.h"
#include "data/forwarding_source.h"
#include "tutti/core/executor.h"
#include "tutti/core/logging.h"
#include "tutti/core/sync.h"
#include "tutti/core/trace.h"

namespace tutti {
namespace {

using internal::FunctionRandom;
using internal::MakeFunction;
using internal::NumberedFunction;
using internal::PassRandom;
using internal::Rows;

// Waiting for data threads, with a time limit and with warnings.

/// Waits until ready(). Logs a warning naming `who` every minute. Throws kDeadlineExceeded after
/// half an hour, because the function that should yield an element then seems to hang. Requires:
/// `mutex` held.
void wait_for_input(CondVar& condition, Mutex& mutex, std::string_view who,
                    const std::function<bool()>& ready) TUTTI_REQUIRES(mutex) {
  constexpr int kMinutes = 30;
  for (int minute = 1; minute <= kMinutes; ++minute) {
    if (condition.wait_for(mutex, std::chrono::minutes(1), ready)) return;
    log_warning(concat(who, ": no element has arrived for ", minute, " minutes"));
  }
  fail(ErrorCode::kDeadlineExceeded, who, ": expected an element within ", kMinutes,
       " minutes, got none; check whether a function of this dataset hangs");
}

/// Waits until ready(), without a time limit, because a data thread is idle until its consumer
/// reads again or stops it.
void wait_for_work(CondVar& condition, Mutex& mutex, const std::function<bool()>& ready)
    TUTTI_REQUIRES(mutex) {
  while (!condition.wait_for(mutex, std::chrono::minutes(1), ready)) {
  }
}

// The window contains the elements that were read but not yet yielded, in order. next() fills the
// window from the input source, then waits until its first element is done. Threads claim elements
// in order. `claimed_` counts the elements claimed since the start, `handed_out_` the elements that
// left the window.

struct Work {
  std::optional<Element> element;  // the input, later the result
  std::uint64_t number = 0;
  std::exception_ptr error;
  bool done = false;
};

/// Iterator that reads `below` on the thread that calls next(), applies `fn` on `num_threads`
/// threads (started by the first next()) and yields the results in order. If `fn` or `below` throws
/// for an element, the next() that would yield it rethrows the exception.
class ParallelMapIterator : public ElementIterator {
 public:
  ParallelMapIterator(std::unique_ptr<ElementIterator> below, NumberedFunction fn, int num_threads)
      : below_(std::move(below)), fn_(std::move(fn)), num_threads_(num_threads) {}

  ~ParallelMapIterator() override {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    threads_.clear();  // joins
  }

  std::optional<Element> next() override {
    start_threads();
    fill_window();
    std::optional<Work> work = take_first();
    if (!work) return std::nullopt;
    if (work->error) std::rethrow_exception(work->error);
    return std::move(work->element);
  }

  void skip(std::int64_t count) override {
    for (; count > 0; --count) {
      if (!take_first()) break;
    }
    if (count < 1 || ended_) return;
    below_->skip(count);
    next_number_ += static_cast<std::uint64_t>(count);
  }

 private:
  void start_threads() {
    while (static_cast<int>(threads_.size()) < num_threads_) {
      threads_.push_back(Executor::system().start("tutti-map", [this] { run(); }));
    }
  }

  // Twice the number of threads, so that every thread finds a waiting element when it finishes one.
  std::size_t capacity() const { return 2 * static_cast<std::size_t>(num_threads_); }

  std::size_t window_size() {
    MutexLock lock(mutex_);
    return window_.size();
  }

  void fill_window() {
    for (std::size_t size = window_size(); size < capacity() && !ended_; ++size) {
      Work work;
      try {
        work.element = below_->next();
      } catch (...) {
        work.error = std::current_exception();
        work.done = true;
      }
      if (!work.element && !work.error) {
        ended_ = true;
        return;
      }
      work.number = next_number_++;
      const bool failed = work.done;
      MutexLock lock(mutex_);
      window_.push_back(std::move(work));
      changed_.notify_all();
      // After an error, elements are read only on demand.
      if (failed) return;
    }
  }

  std::optional<Work> take_first() {
    MutexLock lock(mutex_);
    if (window_.empty()) return std::nullopt;
    wait_for_input(changed_, mutex_, "Dataset::map",
                   [this]() TUTTI_REQUIRES(mutex_) { return window_.front().done; });
    std::optional<Work> work(std::move(window_.front()));
    window_.pop_front();
    ++handed_out_;
    return work;
  }

  // Returns true if the window has an unclaimed element. `handed_out_` can exceed `claimed_`,
  // because elements that could not be read leave the window unclaimed.
  bool has_unclaimed() TUTTI_REQUIRES(mutex_) {
    claimed_ = std::max(claimed_, handed_out_);
    return claimed_ < handed_out_ + window_.size();
  }

  // Returns the next unclaimed element, or nullptr if the thread should end. The pointer stays
  // valid, because a deque does not move its elements.
  Work* claim() {
    MutexLock lock(mutex_);
    for (;;) {
      wait_for_work(changed_, mutex_,
                    [this]() TUTTI_REQUIRES(mutex_) { return stopping_ || has_unclaimed(); });
      if (stopping_) return nullptr;
      Work& work = window_[claimed_++ - handed_out_];
      if (!work.done) return &work;
    }
  }

  // Runs on each thread.
  void run() {
    while (Work* work = claim()) {
      std::optional<Element> result;
      std::exception_ptr error;
      try {
        result = fn_(*work->element, work->number);
      } catch (...) {
        error = std::current_exception();
      }
      MutexLock lock(mutex_);
      work->element = std::move(result);
      work->error = std::move(error);
      work->done = true;
      changed_.notify_all();
    }
  }

  std::unique_ptr<ElementIterator> below_;
  const NumberedFunction fn_;
  const int num_threads_;
  bool ended_ = false;
  std::uint64_t next_number_ = 0;  // number of the next element to read
  Mutex mutex_;
  CondVar changed_;
  std::deque<Work> window_ TUTTI_GUARDED_BY(mutex_);
  std::size_t claimed_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::size_t handed_out_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool stopping_ TUTTI_GUARDED_BY(mutex_) = false;
  std::vector<std::unique_ptr<Thread>> threads_;
};

// Dataset::map().

class MapIterator : public internal::ForwardingIterator {
 public:
  MapIterator(std::unique_ptr<ElementIterator> below, NumberedFunction fn)
      : ForwardingIterator(std::move(below)), fn_(std::move(fn)) {}

  std::optional<Element> next() override {
    // An element that cannot be read also uses up a number, as with several parallel calls.
    const std::uint64_t number = next_number_++;
    std::optional<Element> element = below().next();
    if (!element) return std::nullopt;
    return fn_(*element, number);
  }

  void skip(std::int64_t count) override {
    if (count < 1) return;
    below().skip(count);
    next_number_ += static_cast<std::uint64_t>(count);
  }

 private:
  NumberedFunction fn_;
  std::uint64_t next_number_ = 0;
};

struct Mapping {
  MakeFunction make;
  int num_parallel_calls = 1;
  Rows rows = Rows::kUnknown;
  FunctionRandom random = {};
};

class MapSource : public internal::SourceWith<MapSource, Mapping> {
 public:
  using SourceWith::SourceWith;

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    const int calls = argument().num_parallel_calls;
    if (calls == 1)
      return std::make_unique<MapIterator>(below().iterate(epoch), function_of(epoch));
    return std::make_unique<ParallelMapIterator>(below().iterate(epoch), function_of(epoch), calls);
  }
  std::optional<std::int64_t> batch_size() const override {
    return argument().rows == Rows::kKept ? below().batch_size() : std::nullopt;
  }
  std::optional<int> batch_depth() const override {
    return argument().rows == Rows::kKept ? below().batch_depth() : std::nullopt;
  }

 private:
  /// Returns the function for an epoch. The random numbers that it uses for an element are keyed by
  /// the element's number in the full pass over all shards.
  NumberedFunction function_of(std::uint64_t epoch) const {
    return [fn = argument().make(epoch),
            random = argument().random.of_pass(epoch, below().pass_shard())](const Element& element,
                                                                             std::uint64_t n) {
      const RandomContext context = random.at(n);
      const RandomContextScope scope(context);
      return fn(element, context.step);
    };
  }
};

}  // namespace

Dataset internal::map_numbered(const Dataset& dataset, MakeFunction make, int num_parallel_calls,
                               const char* who, Rows rows) {
  internal::require(num_parallel_calls >= 1, who, ": expected num_parallel_calls >= 1, got ",
                    num_parallel_calls);
  return Dataset(std::make_shared<MapSource>(dataset.shared_source(),
                                             Mapping{std::move(make), num_parallel_calls, rows}));
}

Dataset Dataset::map(std::function<Element(const Element&)> fn, MapOptions options) const {
  internal::require_function(fn, "Dataset::map");
  NumberedFunction of_element = [fn = std::move(fn)](const Element& element, std::uint64_t) {
    return fn(element);
  };
  return internal::map_numbered(
      *this, [of_element](std::uint64_t) { return of_element; }, options.num_parallel_calls,
      "Dataset::map");
}

// Dataset::filter() and take_while().

namespace {

using Predicate = std::function<bool(const Element&)>;

struct Choosing {
  Predicate accepts;
  bool ends_at_refusal = false;
  FunctionRandom random = {};
};

class ChoosingIterator : public ElementIterator {
 public:
  ChoosingIterator(std::unique_ptr<ElementIterator> below, const Choosing& choosing,
                   std::uint64_t epoch, const PassShard& shard)
      : below_(std::move(below)),
        choosing_(choosing),
        random_(choosing.random.of_pass(epoch, shard)) {}

  std::optional<Element> next() override {
    while (below_) {
      std::optional<Element> element = below_->next();
      if (element && accepts(*element)) return element;
      if (!element || choosing_.ends_at_refusal) below_.reset();
    }
    return std::nullopt;
  }

 private:
  bool accepts(const Element& element) {
    const RandomContextScope scope(random_.at(next_number_++));
    return choosing_.accepts(element);
  }

  std::unique_ptr<ElementIterator> below_;  // null once it has ended
  const Choosing choosing_;
  const PassRandom random_;
  std::uint64_t next_number_ = 0;
};

/// Source of the elements that satisfy a predicate; their number is unknown.
class ChosenSource : public internal::Decorator<ChosenSource, ChoosingIterator, Choosing> {
 public:
  using Decorator::Decorator;
  std::optional<std::int64_t> cardinality() const override { return std::nullopt; }
  std::optional<std::int64_t> batch_size() const override { return std::nullopt; }
};

}  // namespace

Dataset Dataset::filter(std::function<bool(const Element&)> predicate) const {
  internal::require_function(predicate, "Dataset::filter");
  return Dataset(std::make_shared<ChosenSource>(source_, Choosing{std::move(predicate)}));
}

Dataset Dataset::take_while(std::function<bool(const Element&)> predicate) const {
  internal::require_function(predicate, "Dataset::take_while");
  return Dataset(std::make_shared<ChosenSource>(source_, Choosing{std::move(predicate), true}));
}

// Dataset::enumerate().

namespace {

class EnumerateIterator : public internal::ForwardingIterator {
 public:
  EnumerateIterator(std::unique_ptr<ElementIterator> below, std::int64_t start)
      : ForwardingIterator(std::move(below)), index_(start) {}

  std::optional<Element> next() override {
    std::optional<Element> element = below().next();
    if (!element) return std::nullopt;
    std::vector<Tensor> tensors = {Tensor::from<std::int64_t>({}, {index_++})};
    tensors.insert(tensors.end(), element->tensors().begin(), element->tensors().end());
    std::vector<std::string> names = {"index"};
    names.insert(names.end(), element->names().begin(), element->names().end());
    return Element(std::move(tensors), std::move(names));
  }

  void skip(std::int64_t count) override {
    if (count < 1) return;
    below().skip(count);
    __builtin_add_overflow(index_, count, &index_);
  }

 private:
  std::int64_t index_;
};

class EnumerateSource
    : public internal::Decorator<EnumerateSource, EnumerateIterator, std::int64_t> {
 public:
  using Decorator::Decorator;
  std::optional<std::int64_t> batch_size() const override { return std::nullopt; }
};

}  // namespace

Dataset Dataset::enumerate(std::int64_t start) const {
  return Dataset(std::make_shared<EnumerateSource>(source_, start));
}

// Dataset::prefetch(): a thread fills a queue.

namespace {

/// Item of the queue: an element, or the exception that reading it threw. An item with neither
/// marks the end.
struct Reading {
  std::optional<Element> element;
  std::exception_ptr error;
  bool is_end() const { return !element && !error; }
};

struct Prefetching {
  std::size_t depth = 1;
  internal::FunctionRandom random = {};  // random keys for sources that draw numbers in next()
};

class PrefetchIterator : public ElementIterator {
 public:
  PrefetchIterator(std::unique_ptr<ElementIterator> below, const Prefetching& prefetching,
                   std::uint64_t epoch)
      : below_(std::move(below)),
        depth_(prefetching.depth),
        random_(prefetching.random.of_pass(epoch)) {}

  ~PrefetchIterator() override {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    thread_.reset();  // joins the thread, which may be waiting for room or in below_->next()
  }

  std::optional<Element> next() override {
    if (ended_) return std::nullopt;
    if (!thread_) thread_ = Executor::system().start("tutti-prefetch", [this] { read_ahead(); });
    Reading reading = next_reading();
    if (reading.error) std::rethrow_exception(reading.error);
    ended_ = reading.is_end();
    return std::move(reading.element);
  }

  void skip(std::int64_t count) override {
    if (thread_ || ended_) return ElementIterator::skip(count);
    below_->skip(count);  // no element has been read yet
    next_number_ += static_cast<std::uint64_t>(std::max<std::int64_t>(count, 0));
  }

 private:
  Reading next_reading() {
    MutexLock lock(mutex_);
    wait_for_input(changed_, mutex_, "Dataset::prefetch",
                   [this]() TUTTI_REQUIRES(mutex_) { return !queue_.empty(); });
    Reading reading = std::move(queue_.front());
    queue_.pop_front();
    changed_.notify_all();
    return reading;
  }

  // Runs on the prefetch thread.
  void read_ahead() {
    bool more = true;
    while (more && wait_for_room()) {
      Reading reading = read_below();
      more = !reading.is_end();
      MutexLock lock(mutex_);
      queue_.push_back(std::move(reading));
      changed_.notify_all();
    }
  }

  bool wait_for_room() {
    MutexLock lock(mutex_);
    wait_for_work(changed_, mutex_,
                  [this]() TUTTI_REQUIRES(mutex_) { return stopping_ || queue_.size() < depth_; });
    return !stopping_;
  }

  Reading read_below() {
    const TraceSpan span("read", "input");
    const RandomContextScope scope(random_.at(next_number_++));
    Reading reading;
    try {
      reading.element = below_->next();
    } catch (...) {
      reading.error = std::current_exception();
    }
    return reading;
  }

  std::unique_ptr<ElementIterator> below_;  // used only by thread_ while it runs
  const std::size_t depth_;
  const internal::PassRandom random_;
  std::uint64_t next_number_ = 0;  // used only by thread_ while it runs
  bool ended_ = false;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Reading> queue_ TUTTI_GUARDED_BY(mutex_);
  bool stopping_ TUTTI_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Thread> thread_;
};

class PrefetchSource : public internal::Decorator<PrefetchSource, PrefetchIterator, Prefetching> {
 public:
  using Decorator::Decorator;
};

}  // namespace

Dataset Dataset::prefetch(int depth) const {
  internal::require(depth >= 0, "Dataset::prefetch: expected a depth >= 0, got ", depth);
  if (depth == 0) return *this;
  return Dataset(
      std::make_shared<PrefetchSource>(source_, Prefetching{static_cast<std::size_t>(depth)}));
}

bool internal::only_reads_ahead(const DatasetSource& source) {
  return dynamic_cast<const PrefetchSource*>(&source) != nullptr;
}

}  // namespace tutti
