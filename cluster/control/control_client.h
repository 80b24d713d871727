// ControlClient: a process's membership in its job, with access to the job's store, verdicts and
// stop agreement.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cluster/control/member.h"
#include "tutti/cluster/control/join_options.h"
#include "tutti/core/clock.h"
#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti {

/// A member of a job. Its thread sends the progress of this process at the server's heartbeat
/// interval (250 ms by default), and receives verdicts. It replaces a broken connection and repeats
/// interrupted calls while the server considers this process alive. The loss of the server itself
/// is reported as a verdict on the task that hosts it, and later calls throw kUnavailable.
/// Thread-safe.
class ControlClient : public KeyValueStore {
 public:
  /// Calls leave(). If an exception ends the scope, the other members receive a kFailed verdict
  /// with the text last passed to note_failure().
  ~ControlClient() override = default;

  /// Waits until all tasks that the server expects have joined. Logs the missing tasks with their
  /// addresses every `say_every`. Throws kDeadlineExceeded, naming the missing tasks, if the
  /// deadline passes.
  virtual void wait_for_members(TimePoint deadline) = 0;
  /// Returns all expected tasks and all tasks that ever joined, sorted by job and index.
  virtual std::vector<Member> members() = 0;
  virtual Member self() const = 0;

  /// Returns all verdicts so far. These include every reported error, not only the first.
  virtual std::vector<Verdict> verdicts() const = 0;
  /// Returns the first fatal verdict; nullopt if there is none.
  std::optional<Verdict> fatal_verdict() const {
    for (Verdict& verdict : verdicts()) {
      if (verdict.is_fatal) return std::move(verdict);
    }
    return std::nullopt;
  }
  /// Reports "worker 2: <message>" to the other members. Returns when the server has received the
  /// report, or after 1 s.
  virtual void report_failure(const Error& error) noexcept = 0;
  /// Reports that the connection to another member broke. `last_verdict` is the number of the last
  /// fatal verdict before the connection was made; 0: none. All members receive a kDisconnected
  /// verdict, "worker 0 lost its connection to worker 1: <why>", unless one of the two members has
  /// left or was given up, or there is a newer fatal verdict, for example from the peer's own
  /// report. Returns once the server has received the report. Throws kInvalidArgument if the peer
  /// is not another member, kDeadlineExceeded after 1 s, and kUnavailable if the server has exited
  /// or has given up on this process.
  virtual void report_disconnection(const MemberTask& peer, std::uint64_t last_verdict,
                                    std::string_view why) = 0;

  /// Stores the message of an error that may end this process; "" clears it. Does not send the
  /// message.
  virtual void note_failure(std::string_view text) = 0;

  /// Requests that all members stop after a step that they agree on. Returns once the server has
  /// received the request, before the agreement; later requests have no effect. Must not be called
  /// in signal handlers, which should set a flag that the training loop reads.
  virtual void request_stop(std::string_view reason) = 0;
  /// Returns the step after which every member stops; nullopt if there was no request or no
  /// agreement yet.
  virtual std::optional<std::uint64_t> agreed_stop_step() const = 0;
  /// Returns true if this process must stop after this step. Must be called after each step (1, 2,
  /// 3, ...) and before the next; every member gets true after the same step. Waits (up to 4 s)
  /// while the members may be about to agree on this step.
  virtual bool stops_after(std::uint64_t step) = 0;
  /// Returns the reason for stopping, such as "worker 2: SIGTERM".
  virtual std::string stop_reason() const = 0;

  /// Leaves the job: from then on, no member waits for this process. Later calls throw
  /// kFailedPrecondition.
  virtual void leave() noexcept = 0;

  /// Reports a failure, once, if an exception is unwinding the scope that created this client. Must
  /// be called before connections to other members close, so that the members receive the reason
  /// first.
  virtual void report_unwinding() noexcept = 0;
};

/// Joins the job whose control server is at `target`, such as "grpc://127.0.0.1:4711". Throws
/// kDeadlineExceeded with the address and the reason of the last failed attempt; kUnavailable
/// within seconds if this machine can never reach the address; kInvalidArgument for an invalid
/// target; kFailedPrecondition if the server refuses the process (versions, numerics, job or secret
/// differ, or the task has already joined); kUnimplemented in a build without gRPC.
std::unique_ptr<ControlClient> connect_control(const std::string& target, const MemberTask& self,
                                               const ControlOptions& options = {});

}  // namespace tutti
