// Small questions between the ranks of a group: where are you, and which call have you reached?
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cross_device_ops/algorithms/rank_link.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// One rank's side. A question is a message of 8 bytes (a number), its answer the number, the calls
/// that the rank has begun, and up to 512 bytes of text. Threads: any; questions one at a time.
class RankStates {
 public:
  explicit RankStates(RankLink link);

  struct State {
    bool answered = false;
    std::uint64_t calls_begun = 0;
    std::string text;
  };

  void begin_call(std::uint64_t sequence) { calls_begun_.store(sequence + 1); }
  /// Answers those who have asked. Never blocks.
  void tend(const std::function<std::string()>& own_state);
  /// Asks all others; by rank. A rank silent until the deadline has not answered.
  std::vector<State> ask(TimePoint deadline);
  /// "rank 2 did not come": who, by what the others say, has not begun the call with this number.
  /// `awaited`: the ranks whose messages this one waits for, increasing.
  std::string missing(std::uint64_t sequence, const std::vector<int>& awaited);
  /// See CollectiveEngine.
  std::vector<std::string> whereabouts(TimePoint deadline);

 private:
  static constexpr std::size_t kTextBytes = 512;
  struct Question {
    std::uint64_t number = 0;
    std::unique_ptr<Work> work;
  };
  struct Answer {
    std::array<std::uint64_t, 2> head{};  // the question's number, the calls begun
    std::array<std::byte, kTextBytes> text{};
    std::unique_ptr<Work> work;
  };

  void answer(int peer, std::uint64_t number, const std::string& text) TUTTI_REQUIRES(tend_mutex_);
  std::unique_ptr<Work> hear(int peer, Answer& answer);
  void expect_question(int peer) TUTTI_REQUIRES(tend_mutex_);
  bool take_answer(int peer, Answer& answer, std::uint64_t number, State& state);

  const RankLink link_;
  std::atomic<std::uint64_t> calls_begun_{0};
  Mutex tend_mutex_;
  std::vector<std::optional<Question>> questions_ TUTTI_GUARDED_BY(tend_mutex_);  // by rank
  std::vector<std::unique_ptr<Answer>> answers_ TUTTI_GUARDED_BY(tend_mutex_);    // being sent
  std::string last_text_ TUTTI_GUARDED_BY(tend_mutex_);
  bool closed_ TUTTI_GUARDED_BY(tend_mutex_) = false;
  Mutex ask_mutex_;
  std::uint64_t last_number_ TUTTI_GUARDED_BY(ask_mutex_) = 0;
};

}  // namespace tutti::internal
