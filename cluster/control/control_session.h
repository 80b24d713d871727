// What is behind a ControlClient: its thread, its connection and the questions under way.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/cluster/control/control_client.h"
#include "tutti/cluster/control/message.h"
#include "tutti/cluster/control/stop_agreement.h"
#include "tutti/cluster/control/wires.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// Threads: any, all functions.
class ControlSession {
 public:
  /// Connects and joins; throws as connect_control().
  ControlSession(const std::string& target, const MemberTask& self, const ControlOptions& options);
  ~ControlSession();

  /// Asks and waits for the answer. Throws what the server answers, kDeadlineExceeded as `what`,
  /// kUnavailable when the server is gone, or a fatal verdict after `last_verdict` is there
  /// (nothing: verdicts do not matter).
  StoreReply ask(const decltype(Message::body)& body, TimePoint deadline, const std::string& what,
                 std::optional<std::uint64_t> last_verdict = std::nullopt);
  std::vector<Member> members(bool until_all_are_here, TimePoint deadline);
  /// Nothing: it left or lost the server before.
  void leave() noexcept;

  std::vector<Verdict> verdicts() const;
  const Member& self() const { return joined_.who; }
  const ControlOptions& options() const { return options_; }
  StopGate& gate() { return gate_; }

 private:
  struct Question {
    Message message;
    std::optional<Message> answer;
  };
  Attempt connect_once(TimePoint deadline);
  Attempt join_once(TimePoint deadline);
  void connect_at_start();
  void say_waiting(TimePoint begin, const std::string& reason) const;
  std::string server_name() const;

  void run();
  bool reconnect();
  Duration silent_after() const { return std::chrono::milliseconds(welcome_.silent_ms); }
  Duration unreachable_after() const { return std::chrono::milliseconds(welcome_.unreachable_ms); }
  bool may_be_cut_off(TimePoint now) const;
  void renew();
  bool hosts_the_server() const;
  void take(const Message& message);
  void take_verdict(Verdict verdict);
  void send(const Message& message);
  void send_heartbeat();
  std::optional<Verdict> judge_server(TimePoint now) const;
  Verdict verdict_on_server(VerdictKind kind, const std::string& what) const;
  void end(ErrorCode code, const std::string& reason);
  Message wait_for_answer(const decltype(Message::body)& body, TimePoint deadline,
                          const std::string& what, std::optional<std::uint64_t> last_verdict);
  const Verdict* fatal_after(std::uint64_t number) const TUTTI_REQUIRES(mutex_);

  const ControlTarget target_;
  const ControlOptions options_;
  JoinRequest joined_;
  JoinReply welcome_;
  StopGate gate_;
  TimePoint last_heard_;        // of the server; the thread's
  bool knows_history_ = false;  // the same

  mutable Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<ClientWire> wire_ TUTTI_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Question> questions_ TUTTI_GUARDED_BY(mutex_);
  std::uint64_t num_questions_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::vector<Verdict> verdicts_ TUTTI_GUARDED_BY(mutex_);
  std::optional<Error> ended_ TUTTI_GUARDED_BY(mutex_);  // why there are no more answers
  bool stopping_ TUTTI_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Thread> thread_;
};

}  // namespace tutti::internal
