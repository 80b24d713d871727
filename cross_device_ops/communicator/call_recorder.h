// The last calls of one rank, for the log after something went wrong.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cross_device_ops/collective_header.h"
#include "tutti/core/clock.h"

namespace tutti::internal {

enum class CallState { kWaiting, kDone, kFailed };

/// One recorded call. Times to a few milliseconds.
struct RecordedCall {
  CollectiveHeader header;
  CallState state = CallState::kWaiting;
  TimePoint begin;
  /// "all_reduce(SUM, float32 x 12, 'a') #3 at a.cc:7".
  std::string to_string(TimePoint now) const;
};

/// A ring of the last 4,096 calls. One thread at a time writes, any reads meanwhile.
class CallRecorder {
 public:
  static constexpr std::size_t kCapacity = 4096;

  CallRecorder();
  void begin(const CollectiveHeader& header, const char* file, TimePoint now);
  void end(CallState state);

  /// Oldest first.
  std::vector<RecordedCall> calls() const;
  std::optional<RecordedCall> last() const;

 private:
  // Of a header: all but its texts of file, which an entry has a pointer to, and shape.
  static constexpr std::size_t kWords = offsetof(CollectiveHeader, file) / sizeof(std::uint64_t);
  // Words are atomic and a version stands around them, so that a reader sees a whole entry or none.
  struct Entry {
    std::atomic<std::uint64_t> version{0};  // odd: being written
    std::array<std::atomic<std::uint64_t>, kWords> words{};
    std::atomic<const char*> file{nullptr};
    std::atomic<std::int64_t> begin{0};
    std::atomic<int> state{0};
  };
  std::optional<RecordedCall> read(std::uint64_t number) const;

  const std::unique_ptr<Entry[]> entries_;
  std::atomic<std::uint64_t> num_calls_{0};
};

/// The end of a path that still tells files apart: its last two parts, 39 characters at most.
std::string_view short_path(const char* file);

}  // namespace tutti::internal
