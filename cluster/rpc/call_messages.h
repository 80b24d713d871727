// Calls and answers as messages of a stream (calls.proto): heads are protobuf messages, payloads
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

/// Of a payload, in one message.
inline constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
/// The longest head, a piece, and what is around them.
inline constexpr int kLongestMessage = 8 << 20;

/// A request, or an answer: a packet or an error.
struct CallMessage {
  std::uint64_t call = 0;  // 0, and nothing else: the client leaves
  Packet packet = {};
  std::optional<Error> error = {};
};

/// While it lives, owners of payloads that gRPC lets go on this thread stay until it ends: declare
/// it before a lock, for these owners run code of others, which may come back here.
class OwnersEndLater {
 public:
  OwnersEndLater();
  ~OwnersEndLater();
  OwnersEndLater(const OwnersEndLater&) = delete;
  OwnersEndLater& operator=(const OwnersEndLater&) = delete;
  static void end(std::shared_ptr<const void> owner);

 private:
  std::vector<std::shared_ptr<const void>> owners_;
  OwnersEndLater* const outer_;
};

/// Writes messages; payloads are not copied, but for small pieces.
class CallWriter {
 public:
  void push(CallMessage message) { calls_.push_back({std::move(message)}); }
  bool is_empty() const { return calls_.empty() && !prepared_; }
  /// The next message on the wire. A call that ends with it goes to `sent`: its owners run code of
  /// others.
  grpc::ByteBuffer next(std::vector<CallMessage>& sent) {
    return prepared_ ? *std::exchange(prepared_, std::nullopt) : make(sent);
  }
  /// Makes the one after it, while that is on its way.
  void prepare(std::vector<CallMessage>& sent) {
    if (!calls_.empty()) prepared_ = make(sent);
  }

 private:
  struct Outgoing {
    CallMessage message;
    bool has_begun = false;
    std::size_t piece = 0, offset = 0;  // where the payload goes on
  };
  grpc::ByteBuffer make(std::vector<CallMessage>& sent);
  static SharedBytes next_piece(Outgoing& out, std::size_t room);
  static std::size_t small_run(const Outgoing& out, std::size_t room);
  static SharedBytes gathered(Outgoing& out, std::size_t count);

  std::deque<Outgoing> calls_;
  std::optional<grpc::ByteBuffer> prepared_;
};

/// Reads them. Payloads are copied out of what gRPC received, piece by piece while it is in the
/// caches, to one place: gRPC's memory is small, scattered and new for every message where it is
/// kept, and the user of the payload would copy it then. Only an answer that came in one message
/// stays as it came: its taker copies what it keeps.
class CallReader {
 public:
  enum class Side { kServer, kClient };
  CallReader(Side side, std::size_t longest_payload)
      : side_(side), longest_payload_(longest_payload) {}
  /// Throws kDataLoss for what is no message of calls.proto: drop the connection.
  void take(const grpc::ByteBuffer& message);
  /// Returns the call once it is whole.
  std::optional<CallMessage> next();
  void limit_payload(std::size_t longest) { longest_payload_ = longest; }

 private:
  struct Fields;
  void begin(Fields& fields);
  void copy(const std::vector<SharedBytes>& pieces);

  const Side side_;
  std::size_t longest_payload_;
  std::optional<CallMessage> call_;
  bool is_copied_ = false;  // what came before is in payload_
  std::size_t payload_bytes_ = 0, received_ = 0;
  std::vector<SharedBytes> first_;  // of the payload, in the first message
  PayloadMemory payload_;
  std::size_t copied_ = 0;
};

// Client and server of a stream, as its metadata names them (calls.proto).

inline constexpr const char* kCallerKey = "tutti-caller-bin";
inline constexpr const char* kServerKey = "tutti-server-bin";

using Metadata = std::multimap<grpc::string_ref, grpc::string_ref>;

/// "/tutti.v1.ParameterServer/Apply".
const char* path_of(RpcMethod method);

v1::Caller make_caller(const RpcClientOptions& options, std::uint64_t client);
/// Nothing: a client that does not say who it is. Throws kDataLoss for bytes that are no Caller.
std::optional<v1::Caller> caller_in(const Metadata& metadata);
/// Why the server does not answer this caller; "": it does.
std::string refusal_of(const v1::Caller& caller, const RpcServerOptions& options);

v1::CalledServer make_called_server(const RpcServerOptions& options, std::uint64_t run);
/// Nothing: there is none, or it is none.
std::optional<v1::CalledServer> called_server_in(const Metadata& metadata);

}  // namespace tutti::internal
