// Requests and replies as messages on a stream (calls.proto). Heads are protobuf messages; payloads
// are the bytes of `tensors`.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "calls.pb.h"
#include "cluster/rpc/rpc_client.h"
#include "cluster/rpc/rpc_server.h"
#include "tutti/cluster/rpc/packet.h"
#include "tutti/core/error.h"

namespace tutti::internal {

/// Maximum size of the payload in one message.
inline constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
/// Maximum size of a message: the longest head, a chunk, and their framing.
inline constexpr int kLongestMessage = 8 << 20;

/// A request or a reply. A reply contains a packet or an error.
struct CallMessage {
  std::uint64_t call = 0;  // 0 announces that the client is leaving; the message is otherwise empty
  Packet packet = {};
  std::optional<Error> error = {};
};

/// Scope that delays, until it ends, the destruction of payload owners that gRPC releases on this
/// thread. Owners run arbitrary code, which may call back, so this object must be declared before a
/// lock.
class DeferredRelease {
 public:
  DeferredRelease();
  ~DeferredRelease();
  DeferredRelease(const DeferredRelease&) = delete;
  DeferredRelease& operator=(const DeferredRelease&) = delete;
  static void end(std::shared_ptr<const void> owner);

 private:
  std::vector<std::shared_ptr<const void>> owners_;
  DeferredRelease* const outer_;
};

/// Writes messages. Copies only small chunks of payloads.
class CallWriter {
 public:
  void push(CallMessage message) { calls_.push_back({std::move(message)}); }
  bool is_empty() const { return calls_.empty() && !prepared_; }
  /// Returns the next message to send. If it is the last one of its call, moves the call to `sent`,
  /// so that the caller destroys it: destroying the owners of its bytes runs arbitrary code.
  grpc::ByteBuffer next(std::vector<CallMessage>& sent) {
    return prepared_ ? *std::exchange(prepared_, std::nullopt) : make(sent);
  }
  /// Builds the next message in advance, while the current one is being sent.
  void prepare(std::vector<CallMessage>& sent) {
    if (!calls_.empty()) prepared_ = make(sent);
  }

 private:
  struct Outgoing {
    CallMessage message;
    bool has_begun = false;
    std::size_t piece = 0, offset = 0;  // next position in the payload
  };
  grpc::ByteBuffer make(std::vector<CallMessage>& sent);
  static SharedBytes next_piece(Outgoing& out, std::size_t room);
  static std::size_t small_run(const Outgoing& out, std::size_t room);
  static SharedBytes gathered(Outgoing& out, std::size_t count);

  std::deque<Outgoing> calls_;
  std::optional<grpc::ByteBuffer> prepared_;
};

/// Reads messages. Copies payloads from gRPC's memory to one buffer, each chunk while it is in the
/// caches. Otherwise, the payload's user would copy the payload later, because gRPC's memory is
/// scattered and newly allocated per message. A reply of at least 16 KiB that arrives in one
/// message is not copied.
class CallReader {
 public:
  enum class Side { kServer, kClient };
  CallReader(Side side, std::size_t longest_payload)
      : side_(side), longest_payload_(longest_payload) {}
  /// Reads a message. Throws kDataLoss if the message is not defined in calls.proto; the caller
  /// must then drop the connection.
  void take(const grpc::ByteBuffer& message);
  /// Returns the next complete call; nullopt if there is none.
  std::optional<CallMessage> next();
  void limit_payload(std::size_t longest) { longest_payload_ = longest; }

 private:
  struct Fields;
  void begin(Fields& fields);
  void copy(const std::vector<SharedBytes>& pieces);

  const Side side_;
  std::size_t longest_payload_;
  std::optional<CallMessage> call_;
  bool is_copied_ = false;  // true if the bytes received so far are in payload_
  std::size_t payload_bytes_ = 0, received_ = 0;
  std::vector<SharedBytes> first_;  // chunks of the payload in the first message
  PayloadMemory payload_;
  std::size_t copied_ = 0;
};

// Client and server sides of a stream, as described in the stream's metadata (calls.proto).

inline constexpr const char* kCallerKey = "tutti-caller-bin";
inline constexpr const char* kServerKey = "tutti-server-bin";

using Metadata = std::multimap<grpc::string_ref, grpc::string_ref>;

/// Returns the method's path, such as "/tutti.v1.ParameterServer/Apply".
const char* path_of(RpcMethod method);

v1::Caller make_caller(const RpcClientOptions& options, std::uint64_t client);
/// Returns the Caller in the metadata; nullopt if the client does not identify itself. Throws
/// kDataLoss if the bytes are not a Caller.
std::optional<v1::Caller> caller_in(const Metadata& metadata);
/// Returns why the server refuses this caller; "" if the caller is accepted.
std::string refusal_of(const v1::Caller& caller, const RpcServerOptions& options);

v1::CalledServer make_called_server(const RpcServerOptions& options, std::uint64_t run);
/// Returns the CalledServer in the metadata; nullopt if there is no valid one.
std::optional<v1::CalledServer> called_server_in(const Metadata& metadata);

}  // namespace tutti::internal
