// RpcClient: calls to another task of the job.
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
  /// This task and the server; `server` with an empty job: any task of this job.
  MemberTask self = {};
  MemberTask server = {"ps", 0, ""};
  std::uint64_t incarnation = 0;
  std::string job_id = {};
  JobSecret secret = {};
  TlsFiles tls = {};
  /// Timeout for the first connection. Until then a line every 4.5 s names the server. Raising the
  /// interruption cancels the wait.
  Duration connect_timeout = durations::kJoinTimeout;
  std::shared_ptr<const Interruption> interruption = {};
  /// If true, calls that have no answer when the connection breaks wait for take_over() or
  /// fail_all() instead of ending with kUnavailable.
  bool keeps_calls = false;
  /// Number of this client. A new connection ends earlier ones with the same number, and the server
  /// handles its calls after theirs. 0: a random number.
  std::uint64_t client = 0;
};

/// Future answer to one call; the first of set() and set_error() counts. A caller may drop it
/// without waiting. Thread-safe, with one wait at a time.
class RpcReply {
 public:
  /// `what`: "worker 0: ps 1 (127.0.0.1:4711)", for messages.
  explicit RpcReply(std::shared_ptr<const std::string> what) : what_(std::move(what)) {}

  bool is_ready() const;
  /// Returns true if an answer, not an error, has arrived, even after it was taken.
  bool has_answer() const;
  /// Returns the answer, once. Throws the server's error (with its code, prefixed by "ps 1
  /// (address): "), kDeadlineExceeded naming the server, kUnavailable if the connection broke, or
  /// the error of fail_all().
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

/// Connection to one server. Calls are sent in the order of start(); many may be in flight. It
/// stays broken once it breaks: open another one. Thread-safe.
class RpcClient {
 public:
  /// `target`: "grpc://host:port". Returns when connected. Throws as connect_control().
  static std::unique_ptr<RpcClient> connect(const std::string& target, RpcMethod method,
                                            const RpcClientOptions& options);
  /// Closes the connection; calls in flight end with kCancelled.
  ~RpcClient();
  RpcClient(const RpcClient&) = delete;
  RpcClient& operator=(const RpcClient&) = delete;

  /// Sends a request. Memory that `request` refers to must stay valid until the answer has arrived,
  /// and its owners must not call the client from their destructors. Throws kInvalidArgument if the
  /// server does not accept the request's size, kResourceExhausted with 65536 calls in flight.
  std::shared_ptr<RpcReply> start(Packet request);
  Packet call(Packet request, TimePoint deadline) {
    return start(std::move(request))->wait(deadline);
  }
  /// Ends all calls, current and later ones, with this error, and closes the connection.
  void fail_all(const Error& error);
  /// Same as fail_all(), but the connection stays open until the destructor closes it.
  void end_calls(const Error& error);
  /// Waits until the connection has broken or the calls were ended. Returns why it broke.
  std::string wait_for_end();
  /// Returns why it broke; nullopt while it is connected.
  std::optional<std::string> why_broken() const;
  /// Sends the unanswered calls of `broken`, a client of the same server with `keeps_calls`, in
  /// their order. Their replies receive the answers.
  void take_over(RpcClient& broken);

  /// Returns the number of restarts of the server's task before this process.
  std::uint64_t server_incarnation() const;
  /// Returns true if both are connected to one process.
  bool is_same_process(const RpcClient& other) const;
  /// Returns "ps 1 (127.0.0.1:4711)".
  const std::string& server_name() const { return server_name_; }

 private:
  RpcClient(std::string server_name, std::shared_ptr<internal::ClientStream> stream);
  const std::string server_name_;
  const std::shared_ptr<internal::ClientStream> stream_;
};

}  // namespace tutti
