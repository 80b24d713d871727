// What is behind an RpcClient: its calls, its connection, and the thread that opens it anew.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/cluster/rpc/rpc_wires.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// An answer on its way, or here.
class PendingReply final : public RpcReply {
 public:
  /// `what`: "worker 0: ps 1 (127.0.0.1:4711)", for messages.
  explicit PendingReply(std::shared_ptr<const std::string> what);
  bool is_ready() const override;
  bool wait_until_ready(TimePoint deadline) override;
  void when_ready(std::function<void()> told) override;
  Packet wait(TimePoint deadline) override;
  /// The first of these counts.
  void set(Packet answer);
  void set_error(Error error);

 private:
  void settle(Packet answer, std::optional<Error> error);

  const std::shared_ptr<const std::string> what_;
  const TimePoint begin_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool is_ready_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_taken_ TUTTI_GUARDED_BY(mutex_) = false;
  Packet answer_ TUTTI_GUARDED_BY(mutex_);
  std::optional<Error> error_ TUTTI_GUARDED_BY(mutex_);
  std::function<void()> told_ TUTTI_GUARDED_BY(mutex_);
};

/// Threads: any.
class ClientSession final : public RpcFrameSink,
                            public std::enable_shared_from_this<ClientSession> {
 public:
  ClientSession(const std::string& target, const RpcClientOptions& options);

  /// Throws as RpcClient::connect().
  void connect_at_start();
  std::shared_ptr<RpcReply> start(Packet request);
  void fail_all(const Error& error);
  /// Says good-bye and ends the thread.
  void leave();

  std::uint64_t server_incarnation() const;
  const std::string& server_name() const { return server_name_; }
  std::optional<std::string> why_away() const;
  std::optional<TimePoint> away_since() const;
  bool takes_calls() const;
  void received(RpcFrame frame) override;
  /// Sends a probe while calls have no answer.
  bool look_for_gaps(bool has_moved) override;

 private:
  /// About a second each. A server that has no room, or whose handler keeps it from reading, is
  /// silent, too: the next connections have twice as many each, until an answer comes.
  static constexpr int kSilentLooks = 5;
  struct Call {
    Packet request;
    std::shared_ptr<PendingReply> reply;
  };
  using Calls = std::map<std::uint64_t, Call>;
  RpcAttempt connect_once(TimePoint deadline);
  RpcFrame open_frame() const;
  void run(std::shared_ptr<RpcClientWire> wire);
  std::shared_ptr<RpcClientWire> reconnect(const std::string& why);
  /// Takes the new connection into use; sends again what has no answer.
  bool adopt(const RpcAttempt& attempt);
  void send_all_again(const std::shared_ptr<RpcClientWire>& wire) TUTTI_REQUIRES(send_mutex_);
  /// Ends the calls under way, and later ones as long as `lasts`.
  void give_up(const Error& error, bool lasts);
  void acknowledge();
  bool is_over() const;
  RpcFrame request_frame(std::uint64_t number, const Packet& request);

  const RpcTarget target_;
  const RpcClientOptions options_;
  const std::string server_name_;
  const std::shared_ptr<const std::string> what_;
  const std::uint64_t client_;
  Event stop_;

  /// Held while frames are handed to the wire, so that they keep their order; before mutex_.
  Mutex send_mutex_;
  mutable Mutex mutex_;
  std::shared_ptr<RpcClientWire> wire_ TUTTI_GUARDED_BY(mutex_);
  Calls calls_ TUTTI_GUARDED_BY(mutex_);
  std::uint64_t last_call_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::vector<std::uint64_t> arrived_ TUTTI_GUARDED_BY(mutex_);  // and not acknowledged
  std::uint64_t server_run_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::uint64_t server_incarnation_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::size_t longest_payload_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::string why_away_ TUTTI_GUARDED_BY(mutex_);        // while there is no wire
  TimePoint away_since_ TUTTI_GUARDED_BY(mutex_);        // too
  std::optional<Error> away_ TUTTI_GUARDED_BY(mutex_);   // for too long: until it is back
  std::optional<Error> ended_ TUTTI_GUARDED_BY(mutex_);  // for good
  int silent_looks_ TUTTI_GUARDED_BY(mutex_) = 0;        // in a row, while calls have no answer
  int most_silent_looks_ TUTTI_GUARDED_BY(mutex_) = kSilentLooks;
  std::unique_ptr<Thread> thread_;
};

}  // namespace tutti::internal
