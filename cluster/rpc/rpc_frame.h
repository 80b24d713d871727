// What the two ends of a connection for calls say to each other, whatever the wire.
// SPDX-License-Identifier: Apache-2.0
//
// A client opens with its number and the calls that it will send again; the server welcomes it with
// the number of its run. Then come requests, in ascending order of their numbers, and answers, in
// any order. The client tells with its frames which answers it has: until then the server keeps
// them, because the connection that carried them may break. Checksums count the frames of each
// direction, so one that got lost without a word is missed when the next one comes. A client that
// waits for answers sends probes, and the server returns them, so that there is a next one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/cluster/rpc/packet.h"
#include "tutti/core/error.h"

namespace tutti::internal {

struct RpcFrame {
  enum class Kind : std::uint8_t {
    kOpen = 1,         // call: the client's number; numbers: its calls without an answer
    kWelcome = 2,      // call: the run of the server; numbers: {the longest payload it takes}
    kRequest = 3,      // numbers: calls whose answers have come
    kReply = 4,        // the answer to `call`
    kError = 5,        // the answer is `code` with the text in the head
    kAcknowledge = 6,  // numbers as in kRequest
    kGoodBye = 7,      // the client leaves
    kProbe = 8,        // nothing but a frame; the server answers with the same
  };
  Kind kind = Kind::kGoodBye;
  ErrorCode code = ErrorCode::kOk;
  std::uint64_t call = 0;
  std::vector<std::uint64_t> numbers = {};
  Packet packet = {};
  /// Gives back, when it goes, what the bytes of the packet take of the receiver's budget.
  std::shared_ptr<void> lease = {};
};

/// Calls of a client without an answer; answers that a client has not acknowledged.
inline constexpr std::size_t kMostCalls = 65536;
inline constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
/// Smaller payloads are copied rather than kept with all that their owner keeps.
inline constexpr std::size_t kSmallPayload = 65536;

/// Sizes of a frame that has been announced.
struct RpcFrameSizes {
  std::size_t head = 0;
  std::size_t numbers = 0;
  std::size_t payload = 0;
  std::size_t bytes() const { return head + payload; }
};
/// Throws kDataLoss for a frame that no peer sends: unknown kinds and codes, parts that its kind
/// does not have, sizes beyond the limits.
void check_announced(RpcFrame::Kind kind, ErrorCode code, const RpcFrameSizes& sizes,
                     std::size_t longest_payload);

RpcFrame error_frame(std::uint64_t call, const Error& error);
std::string text_of(const std::vector<std::byte>& head);
std::vector<std::byte> bytes_of(std::string_view text);

}  // namespace tutti::internal
