// Writing and reading the ring of the last calls.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/communicator/call_recorder.h"

#include <algorithm>
#include <cstring>
#include <iomanip>
#include <sstream>

#include "tutti/core/text.h"

namespace tutti::internal {

CallRecorder::CallRecorder() : entries_(std::make_unique<Entry[]>(kCapacity)) {}

void CallRecorder::begin(const CollectiveHeader& header, const char* file, TimePoint now) {
  const std::uint64_t number = num_calls_.load(std::memory_order_relaxed);
  Entry& entry = entries_[number % kCapacity];
  constexpr auto relaxed = std::memory_order_relaxed;
  entry.version.store(2 * number + 1, relaxed);
  // Stores of the words are releases: who reads one of them sees the odd version before it.
  constexpr auto release = std::memory_order_release;
  std::array<std::uint64_t, kWords> words;
  std::memcpy(words.data(), &header, sizeof(words));
  for (std::size_t w = 0; w < kWords; ++w) entry.words[w].store(words[w], release);
  entry.file.store(file, release);
  entry.begin.store(now.time_since_epoch().count(), release);
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
  std::array<std::uint64_t, kWords> words;
  for (std::size_t w = 0; w < kWords; ++w) words[w] = entry.words[w].load(acquire);
  std::memcpy(static_cast<void*>(&call.header), words.data(), sizeof(words));
  std::ranges::copy(short_path(entry.file.load(acquire)), call.header.file.begin());
  call.begin = TimePoint(Duration(entry.begin.load(acquire)));
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

}  // namespace tutti::internal
