// What is a frame, and what is none.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/rpc/rpc_frame.h"

#include <algorithm>

namespace tutti::internal {
namespace {

using Kind = RpcFrame::Kind;

bool is_error_code(ErrorCode code) {
  return code != ErrorCode::kOk && to_string(code) != "UNKNOWN";
}

bool has_numbers(Kind kind) {
  return kind == Kind::kOpen || kind == Kind::kWelcome || kind == Kind::kRequest ||
         kind == Kind::kAcknowledge;
}

}  // namespace

void check_announced(Kind kind, ErrorCode code, const RpcFrameSizes& sizes,
                     std::size_t longest_payload) {
  const bool is_kind = kind >= Kind::kOpen && kind <= Kind::kProbe;
  const bool has_packet = kind == Kind::kRequest || kind == Kind::kReply;
  const bool is_error = kind == Kind::kError;
  const bool is_sound = is_kind && (is_error ? is_error_code(code) : code == ErrorCode::kOk) &&
                        (has_packet || sizes.payload == 0) &&
                        (has_packet || is_error || sizes.head == 0) &&
                        (has_numbers(kind) || sizes.numbers == 0);
  if (!is_sound) fail(ErrorCode::kDataLoss, "rpc: expected a frame, got bytes that are none");
  if (sizes.head > tutti::kLongestHead || sizes.numbers > kMostCalls ||
      sizes.payload > longest_payload) {
    fail(ErrorCode::kDataLoss, "rpc: a frame of ", sizes.head, " bytes of head, ", sizes.numbers,
         " numbers and ", sizes.payload, " bytes of payload; expected at most ",
         tutti::kLongestHead, ", ", kMostCalls, " and ", longest_payload);
  }
}

RpcFrame error_frame(std::uint64_t call, const Error& error) {
  RpcFrame frame;
  frame.kind = Kind::kError;
  frame.code = is_error_code(error.code()) ? error.code() : ErrorCode::kInternal;
  frame.call = call;
  constexpr std::size_t kLongestText = 65536;
  frame.packet.head = bytes_of(std::string_view(error.message()).substr(0, kLongestText));
  return frame;
}

std::string text_of(const std::vector<std::byte>& head) {
  std::string text(head.size(), '\0');
  std::ranges::transform(head, text.begin(), [](std::byte b) { return static_cast<char>(b); });
  return text;
}

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

}  // namespace tutti::internal
