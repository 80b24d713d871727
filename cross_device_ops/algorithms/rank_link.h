// A rank of a group and the way to the others; small questions between them: where are you, and
// which call have you reached?
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/transport.h"

namespace tutti::internal {

/// What messages of a group are for: the lowest 16 bits of their tags.
enum class Purpose : std::uint16_t {
  kData = 0,  // headers, and data behind one in the same message
  kQuery = 1,
  kAnswer = 2,
  kNothing = 3,
  kWindow = 4,
  kIntroduction = 5,
  kNonce = 6,
  kDataOf = 16,  // + Collective: data that no header stands before
};

/// Some ranks of a transport as a group: numbers from 0. A value.
///
/// Tags are (group, 48 bits | purpose, 16 bits). They hold no sequence number of calls: all
/// messages of a call are received within it, so the order of sending is enough, and a rank that is
/// a call behind shows as a mismatch instead of as silence.
struct RankLink {
  std::shared_ptr<Transport> transport;
  std::vector<int> ranks;   // of the transport, by number in the group
  int rank = 0;             // in the group
  std::uint64_t group = 0;  // 48 bits, equal on all members

  int size() const { return static_cast<int>(ranks.size()); }
  int right() const { return (rank + 1) % size(); }
  int left() const { return (rank + size() - 1) % size(); }
  std::unique_ptr<Work> send(int peer, Purpose purpose, std::span<const std::byte> head,
                             std::span<const std::byte> body) const;
  std::unique_ptr<Work> recv(int peer, Purpose purpose, std::span<std::byte> head,
                             std::span<std::byte> body) const;
  /// Tells every other rank `own`, a plain value, and returns those of all by rank. Throws
  /// kDeadlineExceeded, `who` first in the message, naming the ranks that did not come.
  template <class T>
  std::vector<T> exchange(Purpose purpose, const T& own, TimePoint deadline,
                          std::string_view who) const {
    std::vector<T> all(ranks.size(), own);
    exchange_bytes(purpose, std::as_writable_bytes(std::span(all)), deadline, who);
    return all;
  }
  void exchange_bytes(Purpose purpose, std::span<std::byte> values, TimePoint deadline,
                      std::string_view who) const;
  /// The group of some members, see CollectiveEngine::subgroup.
  RankLink subgroup(const std::vector<int>& members, std::uint32_t number) const;
};

/// All ranks of a transport.
RankLink link_all(std::shared_ptr<Transport> transport);

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
