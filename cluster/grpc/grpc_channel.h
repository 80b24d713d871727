// Channels to a job's gRPC servers: connecting, errors, and client streams.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_callback.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "cluster/net/socket.h"
#include "tutti/cluster/net/job_secret.h"
#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// Options shared by a server and the channels to it.
struct GrpcOptions {
  /// Address of the server. In a server's own options, port 0 selects a free port.
  Endpoint endpoint = {};
  JobSecret secret = {};
  TlsFiles tls = {};
  /// Size limit of one message, in bytes.
  int most_bytes = 4 << 20;
  /// Enables pings, which detect a silent host or link within 5 s and end the connection.
  bool keeps_alive = false;
  /// Returns true if the server uses a UNIX-domain socket, that is, at a loopback address without
  /// TLS files.
  bool is_local() const { return is_loopback(endpoint.host) && !tls.is_set(); }
};

/// Initializes gRPC for the rest of the process. If this process cannot start gRPC's threads,
/// throws kResourceExhausted, naming the limits to raise; gRPC itself would abort the process.
void initialize_grpc();

/// Opens a channel to a GrpcServer with the same options. The first call connects the channel.
/// Channels do not share connections, so a new channel is independent of a broken one.
std::shared_ptr<grpc::Channel> open_channel(const GrpcOptions& options);

/// Returns the status with which to finish a call that failed with a handler's error.
grpc::Status to_status(grpc::ServerContextBase& context, const Error& error);
/// Returns true if a handler, rather than the channel, returned the error. A channel's errors may
/// be transient.
bool is_of_handler(const grpc::ClientContext& context);
Error to_error(const grpc::Status& status);

/// Returns why a channel could not connect: the operating system's error text.
std::string connect_reason(const grpc::Status& status);

/// Result of an attempt to reach a server.
struct ConnectAttempt {
  bool is_done = false;
  std::string reason = {};  // reason for the failure
  bool is_final = false;    // true if the server refuses, so retrying is pointless
  bool is_connection_refused = false;
  bool is_hopeless = false;   // true if this machine cannot reach the address
  bool is_other_job = false;  // true if the TLS handshake failed; the secrets may differ
  bool is_cut_short = false;  // true if the deadline ended the attempt
};
/// Returns a failed attempt if the address is local and no process listens there; otherwise
/// nullopt.
std::optional<ConnectAttempt> probe_listener(const GrpcOptions& options);
/// Classifies a stream that ended with `status` before the server accepted it. `is_refused`: the
/// server itself refused it. If the server is on another machine, connects again to find the
/// reason, because gRPC's status is not specific.
ConnectAttempt failed_attempt(const grpc::Status& status, bool is_refused,
                              const GrpcOptions& options, TimePoint deadline);

/// Channel and server arguments. They make HTTP/2 frames large enough for a message of 1 MiB.
inline constexpr std::pair<const char*, int> kConnectionArguments[] = {
    {GRPC_ARG_HTTP2_MAX_FRAME_SIZE, (1 << 20) + 4096},
    {GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, 4 << 20},
    {GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 8 << 20},
};
inline constexpr std::pair<const char*, int> kKeepAliveArguments[] = {
    {GRPC_ARG_KEEPALIVE_TIME_MS, 2000},           {GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 3000},
    {GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1}, {GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0},
    {GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0},
};

/// Base class of a client's bidirectional stream. gRPC's threads call On...(). Derived classes call
/// stop() in their destructors, but not on gRPC's threads, which must not destroy the last channel.
/// Other functions are thread-safe.
template <class Request, class Response>
class StreamToServer : public grpc::ClientBidiReactor<Request, Response> {
 public:
  void cancel() { context_.TryCancel(); }
  /// Stops writing, waits for the end of the stream or the deadline, and returns the stream's
  /// status.
  grpc::Status wait_for_end(TimePoint deadline) {
    {
      MutexLock lock(mutex_);
      is_open_ = false;
      release();
    }
    if (!done_.wait_until(deadline)) return {grpc::StatusCode::DEADLINE_EXCEEDED, "no answer"};
    MutexLock lock(mutex_);
    return status_;
  }
  /// Returns true if the stream has ended because the server itself refused it.
  bool is_refused() const { return done_.is_set() && is_of_handler(context_); }

  void OnDone(const grpc::Status& status) override {
    {
      MutexLock lock(mutex_);
      status_ = status;
      is_open_ = false;
      changed_.notify_all();
    }
    done_.set();
  }

 protected:
  /// Starts the call with a hold, which permits writes outside of On...().
  void start() {
    this->AddHold();
    this->StartCall();
  }
  /// Waits until gRPC has finished, which it does promptly after a cancellation.
  void stop() {
    cancel();
    (void)wait_for_end(TimePoint::max());
  }
  /// Removes the hold, after which writes outside of On...() are not permitted.
  void release() TUTTI_REQUIRES(mutex_) {
    if (!std::exchange(has_released_, true)) this->RemoveHold();
  }

  grpc::ClientContext context_;
  Event done_;
  Mutex mutex_;
  CondVar changed_;
  bool is_open_ TUTTI_GUARDED_BY(mutex_) = true;  // true if messages may still arrive
  bool can_write_ TUTTI_GUARDED_BY(mutex_) = true;
  bool is_writing_ TUTTI_GUARDED_BY(mutex_) = false;
  bool has_released_ TUTTI_GUARDED_BY(mutex_) = false;
  grpc::Status status_ TUTTI_GUARDED_BY(mutex_);
};

// Initial connection to a server of the job, with retries.

/// Names of a server and of its settings, for messages about connecting to it.
struct ServerTarget {
  std::string who;         // "control: worker 0"
  std::string wants;       // "join at 127.0.0.1:4711", "call ps 1 (127.0.0.1:4711)"
  std::string name;        // "the control server at 127.0.0.1:4711"
  std::string address_in;  // setting to correct if the address is wrong: "TUTTI_CONTROL"
  Duration timeout;
  Duration say_every;
};

/// Repeats `attempt`, which receives the deadline, until it succeeds. Logs a line every `say_every`
/// while it waits for the server. Throws kFailedPrecondition if the server refuses this client or
/// belongs to another job, kUnavailable within seconds if this machine can never reach the address,
/// and kDeadlineExceeded at the deadline.
void reach_server(const ServerTarget& server,
                  const std::function<ConnectAttempt(TimePoint deadline)>& attempt);

}  // namespace tutti::internal
