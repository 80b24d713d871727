// Channels to a job's gRPC servers: reaching one, what errors mean, how a stream ends.
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

/// Of a server, and of the channels to it.
struct GrpcOptions {
  /// A server's is of its machine; port 0: a free one.
  Endpoint endpoint = {};
  JobSecret secret = {};
  TlsFiles tls = {};
  /// Of one message.
  int most_bytes = 4 << 20;
  /// Pings notice a silent host or link within 5 s, and end the connection.
  bool keeps_alive = false;
  /// Whether it is a UNIX-domain socket: at loopback addresses, unless there are TLS files.
  bool is_local() const { return is_loopback(endpoint.host) && !tls.is_set(); }
};

/// Initializes gRPC for the rest of the process. Throws kResourceExhausted with the limits to raise
/// if this process cannot start the threads that gRPC starts: gRPC itself ends the process then.
void initialize_grpc();

/// To where GrpcServer listens with the same options. Connects with the first call; each channel
/// has connections of its own, so that a new one does not share the fate of the last.
std::shared_ptr<grpc::Channel> open_channel(const GrpcOptions& options);

/// A handler's error; finish the call with it.
grpc::Status to_status(grpc::ServerContextBase& context, const Error& error);
/// Whether a handler said so: a channel's errors may pass when the call is made again.
bool is_of_handler(const grpc::ClientContext& context);
Error to_error(const grpc::Status& status);

/// Why a channel could not connect, in the system's words.
std::string connect_reason(const grpc::Status& status);

/// What came of an attempt to reach a server.
struct ConnectAttempt {
  bool is_done = false;
  std::string reason = {};       // why not
  bool is_final = false;         // the server refuses: no use in trying again
  bool is_nobody_there = false;  // the system says that nobody listens
  bool is_hopeless = false;      // this machine cannot reach the address
  bool is_other_job = false;     // the TLS handshake fails
  bool is_cut_short = false;     // the deadline ended it, whatever came before
};
/// Nothing: there may be a server of this machine, or it is of another one.
std::optional<ConnectAttempt> nobody_listens(const GrpcOptions& options);
/// A stream ended with `status` before the server welcomed it; `is_refused`: by the server itself.
/// Connects once more between machines, for gRPC does not say how bad it is.
ConnectAttempt failed_attempt(const grpc::Status& status, bool is_refused,
                              const GrpcOptions& options, TimePoint deadline);

/// For channels and servers alike: frames of HTTP/2 that hold a message of a mebibyte.
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

// A client's stream in both directions: what every one of them needs to end.

/// gRPC's threads call On...(). Derived classes call stop() in their destructors, not on one of
/// gRPC's threads, which must not end the last channel. Threads: any, all others.
template <class Request, class Response>
class StreamToServer : public grpc::ClientBidiReactor<Request, Response> {
 public:
  void cancel() { context_.TryCancel(); }
  /// How it ended; waits until it has, or the deadline. Nothing is written any more.
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
  /// Whether it has ended because the server itself refused it.
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
  /// With a hold, for writes that are started outside of On...().
  void start() {
    this->AddHold();
    this->StartCall();
  }
  /// Waits for gRPC to let go, which a cancelled stream does at once.
  void stop() {
    cancel();
    (void)wait_for_end(TimePoint::max());
  }
  /// Nothing is written from now on.
  void release() TUTTI_REQUIRES(mutex_) {
    if (!std::exchange(has_released_, true)) this->RemoveHold();
  }

  grpc::ClientContext context_;
  Event done_;
  Mutex mutex_;
  CondVar changed_;
  bool is_open_ TUTTI_GUARDED_BY(mutex_) = true;  // something may still come
  bool can_write_ TUTTI_GUARDED_BY(mutex_) = true;
  bool is_writing_ TUTTI_GUARDED_BY(mutex_) = false;
  bool has_released_ TUTTI_GUARDED_BY(mutex_) = false;
  grpc::Status status_ TUTTI_GUARDED_BY(mutex_);
};

// Reaching a server of the job at first: attempt after attempt, until it is there or waiting is no
// remedy.

/// The server, and the words for messages about reaching it.
struct ServerToReach {
  std::string who;         // "control: worker 0"
  std::string wants;       // "join at 127.0.0.1:4711", "call ps 1 (127.0.0.1:4711)"
  std::string name;        // "the control server at 127.0.0.1:4711"
  std::string address_in;  // what to correct where the address is wrong: "TUTTI_CONTROL"
  Duration timeout;
  Duration say_every;
};

/// Returns when `attempt` is done; it gets the last moment to wait for. Meanwhile a line every
/// `say_every` says what is waited for. Throws kFailedPrecondition when the server refuses, or
/// belongs to another job; kUnavailable within seconds where this machine cannot reach the address,
/// however long it waits; kDeadlineExceeded.
void reach_server(const ServerToReach& server,
                  const std::function<ConnectAttempt(TimePoint deadline)>& attempt);

}  // namespace tutti::internal
