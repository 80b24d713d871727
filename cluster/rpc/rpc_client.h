// Client for calls to another task of the job.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
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

namespace internal {
class ClientStream;
}  // namespace internal

struct RpcClientOptions {
  /// This task and the task to call. If the job of `server` is empty, any task of this job matches.
  MemberTask self = {};
  MemberTask server = {"ps", 0, ""};
  std::uint64_t incarnation = 0;
  std::string job_id = {};
  JobSecret secret = {};
  TlsFiles tls = {};
  /// Timeout for the first connection. While the client waits, a log line names the server every
  /// 4.5 s. Raising `interruption` cancels the wait.
  Duration connect_timeout = durations::kJoinTimeout;
  std::shared_ptr<const Interruption> interruption = {};
  /// If true, calls left unanswered by a broken connection wait for take_over() or fail_all()
  /// instead of ending with kUnavailable.
  bool keeps_calls = false;
  /// Number of this client; 0 selects a random number. A new connection ends earlier connections
  /// with the same number; the server handles the new connection's calls after the earlier calls.
  std::uint64_t client = 0;
};

/// Future for the reply to one call. Only the first set() or set_error() has an effect. The caller
/// may drop the future without waiting. Thread-safe, but only one wait() at a time.
class RpcReply {
 public:
  /// `what` names the client and the server in messages: "worker 0: ps 1 (127.0.0.1:4711)".
  explicit RpcReply(std::shared_ptr<const std::string> what) : what_(std::move(what)) {}

  bool is_ready() const;
  /// Returns true if a reply (not an error) has arrived, even if wait() has already returned it.
  bool has_answer() const;
  /// Waits for the reply and returns it; only one call may succeed. Throws the server's error (with
  /// its code, prefixed by "ps 1 (address): "), kDeadlineExceeded naming the server, kUnavailable
  /// if the connection broke, or the error of fail_all().
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
};

/// Connection to one server. Calls are sent in the order of start(); many may be in flight. A
/// broken connection is not repaired; the caller must open another client. Thread-safe.
class RpcClient {
 public:
  /// Returns a connected client. `target`: "grpc://host:port". Throws the errors of
  /// connect_control().
  static std::unique_ptr<RpcClient> connect(const std::string& target, RpcMethod method,
                                            const RpcClientOptions& options);
  /// Closes the connection; calls in flight end with kCancelled.
  ~RpcClient();
  RpcClient(const RpcClient&) = delete;
  RpcClient& operator=(const RpcClient&) = delete;

  /// Sends a request. Memory that `request` refers to must stay valid until the reply has arrived,
  /// and its owners must not call the client from their destructors. Throws kInvalidArgument if the
  /// server does not accept the request's size, or kResourceExhausted if 65536 calls are in flight.
  std::shared_ptr<RpcReply> start(Packet request);
  Packet call(Packet request, TimePoint deadline) {
    return start(std::move(request))->wait(deadline);
  }
  /// Fails all current and later calls with this error, and closes the connection.
  void fail_all(const Error& error);
  /// Same as fail_all(), but the connection stays open until the destructor closes it.
  void end_calls(const Error& error);
  /// Waits until the connection has broken or the calls have been ended. Returns the reason.
  std::string wait_for_end();
  /// Returns why the connection broke; nullopt while it is connected.
  std::optional<std::string> why_broken() const;
  /// Resends the unanswered calls of `broken`, in order. `broken` is a client of the same server
  /// with `keeps_calls`. The existing RpcReply objects receive the results.
  void take_over(RpcClient& broken);

  /// Returns how many times the server's task had been restarted when its current process was
  /// started.
  std::uint64_t server_incarnation() const;
  /// Returns true if both clients are connected to the same process.
  bool is_same_process(const RpcClient& other) const;
  /// Returns "ps 1 (127.0.0.1:4711)".
  const std::string& server_name() const { return server_name_; }

 private:
  RpcClient(std::string server_name, std::shared_ptr<internal::ClientStream> stream);
  const std::string server_name_;
  const std::shared_ptr<internal::ClientStream> stream_;
};

}  // namespace tutti
