// Frames as bytes on a connection of our own, checked before anything of them is used.
// SPDX-License-Identifier: Apache-2.0
//
// A frame is a fixed part (kRpcFixedBytes, with a checksum of its own), its numbers, its head (a
// checksum of both is in the fixed part), its payload and a checksum of each mebibyte of that.
// Checksums of fixed parts begin with a word of the session's key and the number of the frame, so
// that no frame is one on another connection, or twice.
#pragma once

#include <sys/uio.h>

#include <array>
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

inline constexpr std::size_t kRpcFixedBytes = 40;

/// Cuts frames into what the system is to write, without copying heads and payloads.
class RpcWriter {
 public:
  explicit RpcWriter(const Digest256& key) : key_(key) {}
  void push(RpcFrame frame);
  bool is_empty() const { return frames_.empty(); }
  /// The next bytes, at most about 2 MiB; valid until wrote().
  std::span<const iovec> next();
  /// So many of them are written. Frames that are done go to `sent`: their owners run code of
  /// others.
  void wrote(std::size_t count, std::vector<RpcFrame>& sent);

 private:
  struct Outgoing {
    RpcFrame frame;
    std::vector<std::byte> front = {};  // fixed part and numbers
    std::vector<std::byte> sums = {};
    std::size_t part = 0;    // 0: front, 1: head, 2...: payload, last: sums
    std::size_t offset = 0;  // in that part
    std::size_t payload_done = 0, payload_summed = 0, payload_bytes = 0;
    std::uint32_t sum = 0;
    std::size_t num_parts() const { return 3 + frame.packet.payload.size(); }
    std::span<const std::byte> bytes_of(std::size_t part) const;
  };
  void sum(Outgoing& out, std::span<const std::byte> bytes, std::size_t begin) const;

  const Digest256 key_;
  std::uint64_t count_ = 0;
  std::deque<Outgoing> frames_;
  std::vector<iovec> places_;
};

/// Finds frames in a stream of bytes that is read straight to where they belong.
class RpcReader {
 public:
  /// Asked for room before memory for a packet is taken; null: not now.
  using Lease = std::function<std::shared_ptr<void>(std::size_t bytes)>;
  RpcReader(const Digest256& key, std::size_t longest_payload)
      : key_(key), longest_payload_(longest_payload), staging_(kStagingBytes) {}

  /// Where the next bytes are to be read to, the first place first. None: it waits for room.
  std::array<std::span<std::byte>, 2> places();
  void filled(std::size_t count);
  /// The next whole frame, after which there may be more. Throws kDataLoss for bytes that are none,
  /// for good: drop the connection.
  std::optional<RpcFrame> next(const Lease& lease);
  bool waits_for_room() const { return waits_; }
  void limit_payload(std::size_t longest) { longest_payload_ = longest; }
  /// How much of the payload under way has still to come, at least.
  std::size_t payload_left() const {
    return stage_ == Stage::kPayload ? payload_.bytes().size() - done_ : 0;
  }

 private:
  enum class Stage { kFixed, kRoom, kBody, kPayload, kSums };
  static constexpr std::size_t kStagingBytes = 65536;
  void take_fixed();
  bool take_room(const Lease& lease);
  void take_body();
  void check_sums();
  RpcFrame finish();
  std::span<std::byte> target();
  bool fill_target();
  void advance(std::size_t count);
  void enter(Stage stage);

  const Digest256 key_;
  std::size_t longest_payload_;
  std::uint64_t count_ = 0;
  std::vector<std::byte> staging_;  // what has come beyond the place that it belongs to
  std::size_t begin_ = 0, end_ = 0;
  Stage stage_ = Stage::kFixed;
  bool waits_ = false, is_broken_ = false;

  RpcFrame frame_;
  RpcFrameSizes sizes_;
  std::uint32_t body_sum_ = 0;
  std::vector<std::byte> body_;  // numbers and head, later the sums
  PayloadMemory payload_;
  std::size_t done_ = 0;  // of the target
  std::vector<std::uint32_t> sums_;
  std::uint32_t sum_ = 0;
};

}  // namespace tutti::internal
