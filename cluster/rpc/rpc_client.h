// Calls another task of the job.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "cluster/control/control_client.h"
#include "cluster/net/socket.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/cluster/rpc/packet.h"
#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/sync.h"

namespace tutti {

struct RpcClientOptions {
  /// This task, and the one that is to answer; a server without a job: any task of this job.
  MemberTask self = {};
  MemberTask server = {"ps", 0, ""};
  std::uint64_t incarnation = 0;
  std::string job_id = {};
  JobSecret secret = {};
  TlsFiles tls = {};
  /// For reaching the server at first; meanwhile a line every 4.5 s names it. Raised, the
  /// interruption ends that.
  Duration connect_timeout = durations::kJoinTimeout;
  std::shared_ptr<const Interruption> interruption = {};
  /// A connection that broke is opened anew, and calls without an answer are sent again in their
  /// order; only after this long without one they end with kUnavailable. A server that was started
  /// again in the meantime (another incarnation) ends them at once with kAborted, unless
  /// `survives_restarts`.
  Duration patience = durations::kServerPatience;
  bool survives_restarts = false;
};

/// Answer to one call, which arrives later; the first of set() and set_error() counts. A caller may
/// drop it without waiting. Thread-safe, with one wait at a time.
class RpcReply {
 public:
  /// `what`: "worker 0: ps 1 (127.0.0.1:4711)", for messages.
  explicit RpcReply(std::shared_ptr<const std::string> what) : what_(std::move(what)) {}

  bool is_ready() const;
  /// Returns is_ready(); takes nothing, and throws nothing.
  bool wait_until_ready(TimePoint deadline);
  /// Calls `told` once it is ready, at once if it is already: for a caller that also waits for
  /// something else. Runs on the receiving thread: return soon, and do not call the client. One
  /// per reply.
  void when_ready(std::function<void()> told);
  /// Returns the answer, once. Throws the error that the server answered (its code, "ps 1
  /// (address): " in front), kDeadlineExceeded naming the server, kUnavailable if it does not come
  /// back, kAborted if it was started again, or the error of fail_all().
  Packet wait(TimePoint deadline);

  void set(Packet answer) { settle(std::move(answer), std::nullopt); }
  void set_error(Error error) { settle({}, std::move(error)); }

 private:
  void settle(Packet answer, std::optional<Error> error);

  const std::shared_ptr<const std::string> what_;
  const TimePoint begin_ = Clock::system().now();
  mutable Mutex mutex_;
  CondVar changed_;
  bool is_ready_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_taken_ TUTTI_GUARDED_BY(mutex_) = false;
  Packet answer_ TUTTI_GUARDED_BY(mutex_);
  std::optional<Error> error_ TUTTI_GUARDED_BY(mutex_);
  std::function<void()> told_ TUTTI_GUARDED_BY(mutex_);
};

/// A client of one server. Calls are sent in the order of start(); many may be under way. Threads:
/// any, all functions.
class RpcClient {
 public:
  /// `target`: "grpc://host:port". Throws as connect_control(). Returns when connected.
  static std::unique_ptr<RpcClient> connect(const std::string& target, RpcMethod method,
                                            const RpcClientOptions& options);
  /// Closes the connection; calls under way end with kCancelled.
  virtual ~RpcClient() = default;

  /// Sends a request; `request` may point to memory that must stay until the answer is there. Its
  /// owners must not call the client from their destructors. Throws kInvalidArgument for what the
  /// server does not take, kResourceExhausted with 65536 calls under way.
  virtual std::shared_ptr<RpcReply> start(Packet request) = 0;
  Packet call(Packet request, TimePoint deadline) {
    return start(std::move(request))->wait(deadline);
  }
  /// Ends all calls, under way and later, with this error: the job found out that the server is
  /// gone.
  virtual void fail_all(const Error& error) = 0;
  /// Of the server, as it proved; it changes when the server was started again.
  virtual std::uint64_t server_incarnation() const = 0;
  /// "ps 1 (127.0.0.1:4711)".
  virtual std::string server_name() const = 0;
  /// Why there is no connection now, while it is tried again; nothing: there is one.
  virtual std::optional<std::string> why_away() const { return std::nullopt; }
  /// Since when; nothing: there is one.
  virtual std::optional<TimePoint> away_since() const { return std::nullopt; }
  /// false: the server was away for longer than `patience` and is not back, or this client has
  /// ended; calls fail at once.
  virtual bool takes_calls() const { return true; }
};

}  // namespace tutti
