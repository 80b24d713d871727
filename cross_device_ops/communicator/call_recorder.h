// The last calls of one rank, for the log after something went wrong, and the watch over stalled
// ones.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/core/executor.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/collective_engine.h"

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
  static constexpr std::size_t kNameWords = 6;
  // Words are atomic and a version stands around them, so that a reader sees a whole entry or none.
  struct Entry {
    std::atomic<std::uint64_t> version{0};  // odd: being written
    std::atomic<std::uint64_t> sequence{0}, count{0}, kinds{0}, root{0}, line{0};
    std::atomic<std::int64_t> begin{0};
    std::atomic<const char*> file{nullptr};
    std::array<std::atomic<std::uint64_t>, kNameWords> name{};
    std::atomic<int> state{0};
  };
  std::optional<RecordedCall> read(std::uint64_t number) const;

  const std::unique_ptr<Entry[]> entries_;
  std::atomic<std::uint64_t> num_calls_{0};
};

/// The end of a path that still tells files apart: its last two parts, 39 characters at most.
std::string_view short_path(const char* file);

/// Says who is missing when a collective has waited for long, and answers ranks that ask: a thread
/// that looks at one rank's calls about ten times a second, for as long as it lives.
class StallWatch {
 public:
  StallWatch(CollectiveEngine& engine, const CallRecorder& recorder, Duration stall_after);
  ~StallWatch();

  /// "waits in all_reduce(...) #3 at a.cc:7 since 10.2 s" or "is in no collective; its last one
  /// was ...".
  static std::string state_of(const CallRecorder& recorder);
  /// "rank 1 waits in ...; rank 2 does not answer": of all ranks but `own`.
  static std::string states_of_others(CollectiveEngine& engine);

 private:
  void watch();
  void look();

  CollectiveEngine& engine_;
  const CallRecorder& recorder_;
  const Duration stall_after_;
  std::optional<std::uint64_t> reported_;  // sequence number of a call that stalled
  Event stop_;
  std::unique_ptr<Thread> thread_;
};

}  // namespace tutti::internal
