// A connection of a session, and how it is replaced.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/cluster/tcp/session_stream.h"

namespace tutti::internal {

/// What the connections of a session know of their peer together.
struct PeerSigns {
  int num_up = 0;      // connections
  TimePoint alive_at;  // when the peer was last known to answer, if there are none
};

/// The higher rank of the two connects again, with longer and longer pauses. The lower one waits
/// for it, and, while there is no other connection, looks from time to time whether it still
/// listens. A peer that is busy elsewhere takes the connection late, and is waited for: that its
/// door answers is proof of life enough. One thread at a time.
class SessionWay {
 public:
  /// `number`: of the connection. A socket that is not open: it is still to come.
  SessionWay(const SessionParts& parts, std::size_t number, FileDescriptor socket,
             PeerSigns& signs);

  bool is_up() const { return state_ == State::kUp; }
  bool is_gone() const { return state_ == State::kGone; }
  /// " is gone: ..."; of a peer that is.
  const std::string& reason() const { return reason_; }
  /// Not open while there is no connection.
  const FileDescriptor& socket() const { return is_up() ? socket_ : none_; }
  /// Whether it has never been there.
  bool is_new() const { return is_new_; }
  /// Whether step() should soon look again how far an attempt has come.
  bool is_opening() const {
    return state_ != State::kUp && state_ != State::kDown && state_ != State::kGone;
  }
  /// Whether it is up and the system knows that the other end has closed it.
  bool has_ended() const;

  /// The connection is broken: the next step() looks for another one.
  void lose(const std::string& why);
  /// The peer is gone, whatever connections may be opened.
  void give_up(const std::string& reason);
  /// Does what can be done without waiting. A number: there is a new connection, and the peer has
  /// so many bytes. `received`: this rank has so many.
  std::optional<std::uint64_t> step(std::uint64_t received);
  void watch(std::vector<pollfd>& descriptors, bool wants_room) const;
  /// When step() has something to do even if no descriptor says so.
  TimePoint wake_at() const {
    return is_up() || is_gone() || !may_begin() ? TimePoint::max() : again_;
  }
  bool has_unsent() const;
  void close() noexcept;

 private:
  enum class State { kUp, kDown, kConnecting, kGreeting, kAnswering, kGone };

  bool connects() const { return hub_->rank() > peer_; }
  /// Whether this rank has a reason to open a connection: one that only asks whether the peer
  /// lives is enough.
  bool may_begin() const {
    return state_ != State::kDown || connects() || (number_ == 0 && signs_.num_up == 0);
  }
  void come_up(FileDescriptor socket);
  std::optional<std::uint64_t> take_arrival(std::uint64_t received);
  std::optional<std::uint64_t> step_once(std::uint64_t received, TimePoint now);
  void begin(TimePoint now);
  void finish_connecting(TimePoint now);
  void greet(std::uint64_t received, TimePoint now);
  void say_what_came(std::uint64_t received, TimePoint now);
  std::optional<std::uint64_t> read_answer(TimePoint now);
  /// Nothing came: it goes on, unless it takes too long.
  void wait_on(TimePoint now);
  /// Refused: nobody listens there.
  enum class Failure { kRefused, kOther };
  void fail_attempt(Failure failure, TimePoint now);
  void end(const std::string& why);

  const std::shared_ptr<SessionHub> hub_;
  const int peer_;
  const std::size_t number_;
  const Endpoint endpoint_;
  const Duration patience_;
  const FileDescriptor none_;
  FileDescriptor socket_;
  PeerSigns& signs_;
  State state_ = State::kDown;
  bool is_new_ = true;
  std::string why_, reason_;
  TimePoint again_;  // the next attempt, or the end of the running one
  Duration pause_{};
  int times_refused_ = 0;
  std::optional<Handshake> handshake_;  // of the connection that is being opened
  bool is_answered_ = false;            // the peer has said something in it
  std::array<std::byte, kSealedResumedBytes> answer_{};
  std::size_t answered_ = 0;
};

}  // namespace tutti::internal
