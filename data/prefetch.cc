// Reading ahead: a thread of its own fills a queue.
// SPDX-License-Identifier: Apache-2.0
#include <deque>
#include <exception>
#include <utility>

#include "tutti/core/executor.h"
#include "tutti/core/trace.h"
#include "tutti/data/data_threads.h"
#include "tutti/data/forwarding_source.h"

namespace tutti {
namespace {

/// What the thread hands over: an element, an exception in its place, or (neither) the end.
struct Reading {
  std::optional<Element> element;
  std::exception_ptr error;
  bool is_end() const { return !element && !error; }
};

class PrefetchIterator : public ElementIterator {
 public:
  PrefetchIterator(std::unique_ptr<ElementIterator> below, std::size_t depth)
      : below_(std::move(below)), depth_(depth) {}

  ~PrefetchIterator() override {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    thread_.reset();  // joins; the thread may be waiting for room, or inside next() below
  }

  std::optional<Element> next() override {
    if (ended_) return std::nullopt;
    if (!thread_) thread_ = Executor::system().start("tutti-prefetch", [this] { read_ahead(); });
    Reading reading = take_reading();
    if (reading.error) std::rethrow_exception(reading.error);
    ended_ = reading.is_end();
    return std::move(reading.element);
  }

  void skip(std::int64_t count) override {
    if (!thread_ && !ended_) return below_->skip(count);  // nothing read yet
    ElementIterator::skip(count);
  }

 private:
  Reading take_reading() {
    MutexLock lock(mutex_);
    internal::wait_for_input(changed_, mutex_, "Dataset::prefetch",
                             [this]() TUTTI_REQUIRES(mutex_) { return !queue_.empty(); });
    Reading reading = std::move(queue_.front());
    queue_.pop_front();
    changed_.notify_all();
    return reading;
  }

  // Runs on the thread.
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
    internal::wait_for_work(changed_, mutex_, [this]() TUTTI_REQUIRES(mutex_) {
      return stopping_ || queue_.size() < depth_;
    });
    return !stopping_;
  }

  Reading read_below() {
    const TraceSpan span("read", "input");
    Reading reading;
    try {
      reading.element = below_->next();
    } catch (...) {
      reading.error = std::current_exception();
    }
    return reading;
  }

  std::unique_ptr<ElementIterator> below_;  // the thread's alone once there is one
  const std::size_t depth_;
  bool ended_ = false;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Reading> queue_ TUTTI_GUARDED_BY(mutex_);
  bool stopping_ TUTTI_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Thread> thread_;
};

class PrefetchSource : public internal::ForwardingSource {
 public:
  PrefetchSource(std::shared_ptr<const DatasetSource> below, int depth)
      : ForwardingSource(std::move(below)), depth_(depth) {}

  std::unique_ptr<ElementIterator> iterate(std::uint64_t epoch) const override {
    return std::make_unique<PrefetchIterator>(below().iterate(epoch),
                                              static_cast<std::size_t>(depth_));
  }
  SourcePtr over(SourcePtr below) const override {
    return std::make_shared<PrefetchSource>(std::move(below), depth_);
  }

 private:
  int depth_;
};

}  // namespace

Dataset Dataset::prefetch(int depth) const {
  if (depth < 0) {
    fail(ErrorCode::kInvalidArgument, "Dataset::prefetch: expected a depth of at least 0, got ",
         depth);
  }
  if (depth == 0) return *this;
  return Dataset(std::make_shared<PrefetchSource>(source_, depth));
}

}  // namespace tutti
