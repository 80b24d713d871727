// A process's place in its job: the shared store, verdicts on the others, the step to stop at.
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

/// A member of a job. Its thread tells the server every 250 ms how far this process has come (the
/// server says how often) and takes verdicts. A broken connection is opened anew, and calls under
/// way are made again, as long as the server takes this process for alive. When the server itself
/// is gone or silent that is a verdict too, on the task that hosts it; afterwards calls throw
/// kUnavailable. Threads: any, all functions.
class ControlClient : public KeyValueStore {
 public:
  /// leave(); when an exception ends the scope instead, the others get a kFailed verdict, with what
  /// note_failure() said last.
  ~ControlClient() override = default;

  /// Waits until all tasks that the server expects have joined, with a line every `say_every` that
  /// names the missing ones and their addresses. Throws kDeadlineExceeded naming them.
  virtual void wait_for_members(TimePoint deadline) = 0;
  /// All expected tasks and all that ever joined, by job and index.
  virtual std::vector<Member> members() = 0;
  virtual Member self() const = 0;

  /// All verdicts so far; errors that others reported are all there, not only the first.
  virtual std::vector<Verdict> verdicts() const = 0;
  /// The first fatal one.
  std::optional<Verdict> fatal_verdict() const {
    for (Verdict& verdict : verdicts()) {
      if (verdict.is_fatal) return std::move(verdict);
    }
    return std::nullopt;
  }
  /// Tells the others "worker 2: <message>". Returns when the server has it, or after 1 s.
  virtual void report_failure(const Error& error) noexcept = 0;
  /// The connection to another member broke, which was made after `last_verdict` (the number of a
  /// fatal one; 0: none). All members get a kDisconnected verdict, "worker 0 lost its connection to
  /// worker 1: <why>", unless there is a newer fatal one, as when the peer has told it already, or
  /// the peer is not here any more. Returns when the server has it. Throws kInvalidArgument for a
  /// peer that is no other member, kDeadlineExceeded after 1 s, kUnavailable when the server is
  /// gone or has given this process up.
  virtual void report_disconnection(const MemberTask& peer, std::uint64_t last_verdict,
                                    std::string_view why) = 0;

  /// Why an exception may be about to end this process; "": it goes on. Tells nobody yet.
  virtual void note_failure(std::string_view text) = 0;

  /// Asks all members to stop after one step that they agree on. Returns at once; asking again
  /// changes nothing. (Not for signal handlers: these set a flag that the training loop reads.)
  virtual void request_stop(std::string_view reason) = 0;
  /// After this step every member stops; nothing: nobody has asked, or the members still agree.
  virtual std::optional<std::uint64_t> agreed_stop_step() const = 0;
  /// Call it when a step (1, 2, 3, ...) is done and before the next: whether to stop here. Every
  /// member gets true after the same step. Waits (at most 4 s) while the members are about to agree
  /// on this very step.
  virtual bool stops_after(std::uint64_t step) = 0;
  /// Why: "worker 2: SIGTERM".
  virtual std::string stop_reason() const = 0;

  /// Leaves the job: from now on no member waits for this process. Calls throw kFailedPrecondition.
  virtual void leave() noexcept = 0;

  /// Reports a failure, once, if an exception is ending the scope that made this client. Call it
  /// before connections to other members close, so that these learn the reason first.
  virtual void report_unwinding() noexcept = 0;
};

/// Joins the job at "grpc://127.0.0.1:4711". Throws kDeadlineExceeded naming address
/// and the last refusal, kUnavailable within seconds where this machine cannot reach the address
/// however long it waits, kInvalidArgument for targets that are none, kFailedPrecondition for a
/// server that refuses (versions, numerics, job or secret differ, or the task is here already),
/// kUnimplemented in a build without gRPC.
std::unique_ptr<ControlClient> connect_control(const std::string& target, const MemberTask& self,
                                               const ControlOptions& options = {});

}  // namespace tutti
