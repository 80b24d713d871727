// Writing and reading the ring of the last calls; the verdict on stalled ones.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/communicator/call_recorder.h"

#include <algorithm>
#include <cstring>
#include <iomanip>
#include <sstream>

#include "tutti/core/logging.h"

namespace tutti::internal {

CallRecorder::CallRecorder() : entries_(std::make_unique<Entry[]>(kCapacity)) {}

void CallRecorder::begin(const CollectiveHeader& header, const char* file, TimePoint now) {
  const std::uint64_t number = num_calls_.load(std::memory_order_relaxed);
  Entry& entry = entries_[number % kCapacity];
  constexpr auto relaxed = std::memory_order_relaxed;
  entry.version.store(2 * number + 1, relaxed);
  // Stores of the words are releases: who reads one of them sees the odd version before it.
  constexpr auto release = std::memory_order_release;
  entry.sequence.store(header.sequence, release);
  entry.count.store(header.count, release);
  entry.kinds.store(static_cast<std::uint64_t>(header.collective) |
                        static_cast<std::uint64_t>(header.op) << 8 |
                        static_cast<std::uint64_t>(header.dtype) << 16 |
                        static_cast<std::uint64_t>(header.compression) << 24 |
                        static_cast<std::uint64_t>(static_cast<std::uint32_t>(header.rank)) << 32,
                    release);
  entry.root.store(static_cast<std::uint32_t>(header.root), release);
  entry.line.store(header.line, release);
  entry.file.store(file, release);
  entry.begin.store(now.time_since_epoch().count(), release);
  for (std::size_t w = 0; w < kNameWords; ++w) {
    std::uint64_t word = 0;
    std::memcpy(&word, header.name.data() + 8 * w, 8);
    entry.name[w].store(word, release);
    if (word == 0) break;
  }
  entry.state.store(static_cast<int>(CallState::kWaiting), release);
  entry.version.store(2 * number + 2, release);
  num_calls_.store(number + 1, release);
}

void CallRecorder::end(CallState state) {
  Entry& entry = entries_[(num_calls_.load(std::memory_order_relaxed) - 1) % kCapacity];
  entry.state.store(static_cast<int>(state), std::memory_order_release);
}

std::optional<RecordedCall> CallRecorder::read(std::uint64_t number) const {
  const Entry& entry = entries_[number % kCapacity];
  constexpr auto acquire = std::memory_order_acquire;
  if (entry.version.load(acquire) != 2 * number + 2) return std::nullopt;
  RecordedCall call;
  call.state = static_cast<CallState>(entry.state.load(acquire));
  call.header.sequence = entry.sequence.load(acquire);
  call.header.count = entry.count.load(acquire);
  const std::uint64_t kinds = entry.kinds.load(acquire);
  call.header.collective = static_cast<Collective>(kinds & 0xff);
  call.header.op = static_cast<ReduceOp>(kinds >> 8 & 0xff);
  call.header.dtype = static_cast<DType>(kinds >> 16 & 0xff);
  call.header.compression = static_cast<std::uint8_t>(kinds >> 24 & 0xff);
  call.header.rank = static_cast<std::int32_t>(kinds >> 32);
  call.header.root = static_cast<std::int32_t>(entry.root.load(acquire));
  call.header.line = static_cast<std::uint32_t>(entry.line.load(acquire));
  const std::string_view file = short_path(entry.file.load(acquire));
  std::ranges::copy(file, call.header.file.begin());
  call.begin = TimePoint(Duration(entry.begin.load(acquire)));
  for (std::size_t w = 0; w < kNameWords; ++w) {
    const std::uint64_t word = entry.name[w].load(acquire);
    std::memcpy(call.header.name.data() + 8 * w, &word, 8);
    if (word == 0) break;
  }
  if (entry.version.load(acquire) != 2 * number + 2) return std::nullopt;
  return call;
}

std::vector<RecordedCall> CallRecorder::calls() const {
  const std::uint64_t end = num_calls_.load(std::memory_order_acquire);
  std::vector<RecordedCall> calls;
  for (std::uint64_t i = end > kCapacity ? end - kCapacity : 0; i < end; ++i) {
    if (auto call = read(i)) calls.push_back(*call);
  }
  return calls;
}

std::optional<RecordedCall> CallRecorder::last() const {
  const std::uint64_t end = num_calls_.load(std::memory_order_acquire);
  return end == 0 ? std::nullopt : read(end - 1);
}

std::string RecordedCall::to_string(TimePoint now) const {
  std::ostringstream out;
  out << header.describe() << std::fixed << std::setprecision(1);
  switch (state) {
    case CallState::kWaiting:
      out << " waits since " << seconds_between(begin, now) << " s";
      break;
    case CallState::kDone:
      out << " done, begun " << seconds_between(begin, now) << " s ago";
      break;
    case CallState::kFailed:
      out << " failed, begun " << seconds_between(begin, now) << " s ago";
      break;
  }
  return out.str();
}

std::string_view short_path(const char* file) {
  constexpr std::size_t kMost = 39;
  std::string_view path = file == nullptr ? "" : file;
  const std::size_t last = path.rfind('/');
  if (last != std::string_view::npos && last > 0) {
    const std::size_t before = path.rfind('/', last - 1);
    if (before != std::string_view::npos) path.remove_prefix(before + 1);
  }
  if (path.size() > kMost) path.remove_prefix(path.size() - kMost);
  return path;
}

StallWatch::StallWatch(CollectiveEngine& engine, const CallRecorder& recorder, Duration stall_after)
    : engine_(engine), recorder_(recorder), stall_after_(stall_after) {
  thread_ = Executor::system().start(concat("stall-watch-", engine.rank()), [this] { watch(); });
}

StallWatch::~StallWatch() {
  stop_.set();
  thread_->join();
}

std::string StallWatch::state_of(const CallRecorder& recorder) {
  const std::optional<RecordedCall> last = recorder.last();
  if (!last) return "is in no collective and was in none before";
  const TimePoint now = Clock::system().now();
  if (last->state != CallState::kWaiting) {
    return concat("is in no collective; its last one was ", last->to_string(now));
  }
  std::ostringstream out;
  out << "waits in " << last->header.describe() << " since " << std::fixed << std::setprecision(1)
      << seconds_between(last->begin, now) << " s";
  return out.str();
}

std::string StallWatch::states_of_others(CollectiveEngine& engine) {
  const TimePoint end = deadline_after(Clock::system().now(), std::chrono::seconds(1));
  const std::vector<std::string> states = engine.whereabouts(end);
  std::string text;
  for (std::size_t r = 0; r < states.size(); ++r) {
    if (static_cast<int>(r) == engine.rank()) continue;
    text += concat(text.empty() ? "" : "; ", "rank ", r, " ", states[r]);
  }
  return text;
}

void StallWatch::watch() {
  const Duration tick = std::clamp<Duration>(stall_after_ / 4, std::chrono::milliseconds(10),
                                             std::chrono::milliseconds(100));
  do {
    engine_.tend([this] { return state_of(recorder_); });
    look();
  } while (!stop_.wait_until(deadline_after(Clock::system().now(), tick)));
}

void StallWatch::look() {
  const std::optional<RecordedCall> last = recorder_.last();
  if (!last || last->state != CallState::kWaiting || reported_ == last->header.sequence) return;
  if (Clock::system().now() - last->begin < stall_after_) return;
  reported_ = last->header.sequence;
  log_warning(concat("stalled: rank ", engine_.rank(), " ", state_of(recorder_), "; ",
                     states_of_others(engine_)));
}

}  // namespace tutti::internal
