// All connections of a session: which ones are there, and when the peer is gone.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "tutti/cluster/tcp/session_sender.h"
#include "tutti/cluster/tcp/session_way.h"

namespace tutti::internal {

/// The first connection is there from the start, the others are opened when somebody first looks.
/// As long as one of them is up the peer is not gone. One thread at a time.
class SessionWays {
 public:
  explicit SessionWays(SessionParts parts);
  SessionWays(const SessionWays&) = delete;
  SessionWays& operator=(const SessionWays&) = delete;

  std::size_t size() const { return ways_.size(); }
  bool is_up(std::size_t connection) const { return ways_[connection].is_up(); }
  bool any_up() const { return signs_.num_up > 0; }
  bool all_up() const { return signs_.num_up == static_cast<int>(ways_.size()); }
  bool is_gone() const { return std::ranges::any_of(ways_, &SessionWay::is_gone); }
  /// " is gone: ..."; of a peer that is.
  const std::string& reason() const;
  /// The one on which small messages go; 0: there is none.
  std::size_t first_up() const;
  const FileDescriptor& socket(std::size_t connection) const { return ways_[connection].socket(); }
  /// By connection; valid until the next call of any function.
  Sockets sockets();

  void lose(std::size_t connection, const std::string& why) { ways_[connection].lose(why); }
  void give_up(const std::string& reason) { ways_.front().give_up(reason); }
  /// A new connection.
  struct News {
    std::size_t connection = 0;
    std::uint64_t received = 0;  // bytes that the peer has
    bool is_first = false;       // none was there before in its place
  };
  /// Does what can be done without waiting, until there is news; again until there is none.
  std::optional<News> step(std::uint64_t received);
  TimePoint wake_at() const;
  bool is_opening() const { return std::ranges::any_of(ways_, &SessionWay::is_opening); }
  bool has_ended(std::size_t connection) const { return ways_[connection].has_ended(); }
  /// Connects to the peer's door and says nothing: its thread looks up.
  void knock() { knocks_ = start_connecting(endpoint_); }
  bool has_unsent() const { return std::ranges::any_of(ways_, &SessionWay::has_unsent); }
  void watch(std::size_t connection, std::vector<pollfd>& descriptors, bool wants_room) const {
    ways_[connection].watch(descriptors, wants_room);
  }
  void close() noexcept;

 private:
  const Endpoint endpoint_;
  FileDescriptor knocks_;
  PeerSigns signs_;
  std::deque<SessionWay> ways_;
  std::vector<const FileDescriptor*> sockets_;
};

}  // namespace tutti::internal
