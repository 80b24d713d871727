// Frames as messages of a gRPC stream: an envelope of protobuf, and the payload as slices behind
// it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tutti/cluster/handshake/sha256.h"
#include "tutti/cluster/rpc/payload_memory.h"
#include "tutti/cluster/rpc/rpc_frame.h"

namespace tutti::internal {

inline constexpr char kRpcMethod[] = "/tutti.rpc.Calls/Session";
/// A head, as many numbers as there can be, a piece of a payload, and what is around them.
inline constexpr int kLongestGrpcMessage = (8 << 20);

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

grpc::ByteBuffer handshake_message(std::span<const std::byte> bytes);
/// Nothing: another message.
std::optional<std::vector<std::byte>> handshake_of(const grpc::ByteBuffer& message);

/// Cuts frames into messages; payloads are not copied, but for small pieces.
class GrpcFrameWriter {
 public:
  explicit GrpcFrameWriter(const Digest256& key) : key_(key) {}
  void push(RpcFrame frame) { frames_.push_back({std::move(frame)}); }
  bool is_empty() const { return frames_.empty(); }
  /// The next message. A frame that ends with it goes to `sent`: its owners run code of others.
  grpc::ByteBuffer next(std::vector<RpcFrame>& sent);

 private:
  struct Outgoing {
    RpcFrame frame;
    bool has_begun = false;
    std::size_t piece = 0, offset = 0;  // where the payload goes on
  };
  static SharedBytes next_piece(Outgoing& out, std::size_t room, std::uint32_t& sum);
  static std::size_t small_run(const Outgoing& out, std::size_t room);
  static SharedBytes gathered(Outgoing& out, std::size_t count, std::uint32_t& sum);

  const Digest256 key_;
  std::uint64_t count_ = 0;
  std::deque<Outgoing> frames_;
};

/// Puts frames together. Payloads are copied out of what gRPC received, piece by piece while it is
/// in the caches, to one place: gRPC's memory is small, scattered and new for every message where
/// it is kept, and whoever uses the payload would copy it then. Only an answer that came in one
/// message stays as it came: who waits for it copies what it keeps.
class GrpcFrameReader {
 public:
  using Lease = std::function<std::shared_ptr<void>(std::size_t bytes)>;
  GrpcFrameReader(const Digest256& key, std::size_t longest_payload)
      : key_(key), longest_payload_(longest_payload) {}
  /// Throws kDataLoss for what is no message, or not the next one: drop the connection.
  void take(const grpc::ByteBuffer& message);
  /// The frame, once it is whole. Asks for room before more of it is to be read. Throws kDataLoss
  /// for bytes that were damaged: those of a frame's first message wait for their room unseen.
  std::optional<RpcFrame> next(const Lease& lease);
  /// Do not read on before next() found room.
  bool waits_for_room() const { return waits_; }
  void limit_payload(std::size_t longest) { longest_payload_ = longest; }

 private:
  void copy(const std::vector<grpc::Slice>& slices);
  std::vector<SharedBytes> pieces_of(std::vector<grpc::Slice> slices) const;

  const Digest256 key_;
  std::size_t longest_payload_;
  std::uint64_t count_ = 0;
  std::optional<RpcFrame> frame_;
  bool is_leased_ = false, waits_ = false;
  std::size_t head_bytes_ = 0, payload_bytes_ = 0, received_ = 0;
  std::vector<grpc::Slice> waiting_;  // of the payload, until there is room for all of it
  std::uint32_t sum_ = 0;             // of the last message's part of the payload
  PayloadMemory payload_;
  std::size_t copied_ = 0;
};

}  // namespace tutti::internal
