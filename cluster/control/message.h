// What members and control server say to each other, whatever wire carries it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "tutti/cluster/control/member.h"
#include "tutti/cluster/control/progress.h"
#include "tutti/cluster/control/verdict.h"

namespace tutti::internal {

// From members.

struct JoinRequest {
  Member who;
  std::uint64_t start_time = 0;    // of the process: tells it from a later one with its pid
  std::string machine;             // equal where process numbers mean the same
  std::string process;             // unique: a new connection of the same process resumes
  std::uint64_t num_verdicts = 0;  // that it has already
  bool operator==(const JoinRequest&) const = default;
};
struct StoreRequest {
  enum class Action : std::uint8_t { kSet = 1, kGet, kWait, kRemove, kCompareAndSet, kCancelWait };
  Action action = Action::kGet;
  std::string key;
  std::string value;
  std::optional<std::string> expected;
  bool operator==(const StoreRequest&) const = default;
};
struct MembersRequest {
  bool until_all_are_here = false;
  bool operator==(const MembersRequest&) const = default;
};
struct Heartbeat {
  MemberProgress progress;
  bool operator==(const Heartbeat&) const = default;
};
struct FailureReport {
  ErrorCode code = ErrorCode::kInternal;
  std::string text;
  bool operator==(const FailureReport&) const = default;
};
struct StopRequest {
  std::string reason;
  bool operator==(const StopRequest&) const = default;
};
struct StopAnswer {
  std::uint64_t round = 0;
  std::uint64_t current_step = 0;  // that the member works on
  bool accepts = false;
  bool operator==(const StopAnswer&) const = default;
};
struct GoodBye {
  bool operator==(const GoodBye&) const = default;
};

// From the server.

struct JoinReply {
  ErrorCode code = ErrorCode::kOk;
  std::string text;
  Member host;  // whose process the server runs in
  std::uint64_t host_start_time = 0;
  std::string host_machine;
  std::uint64_t heartbeat_ms = 250;
  std::uint64_t silent_ms = 2000;
  std::uint64_t unreachable_ms = 5000;
  bool operator==(const JoinReply&) const = default;
};
struct StoreReply {
  ErrorCode code = ErrorCode::kOk;
  std::string text;
  std::optional<std::string> value;
  bool changed = false;  // whether kRemove or kCompareAndSet did it
  bool operator==(const StoreReply&) const = default;
};
struct MembersReply {
  std::vector<Member> members;
  bool operator==(const MembersReply&) const = default;
};
struct HeartbeatReply {
  bool operator==(const HeartbeatReply&) const = default;
};
struct VerdictNews {
  Verdict verdict;
  bool operator==(const VerdictNews&) const = default;
};
struct StopProposal {
  std::uint64_t round = 0;
  std::uint64_t step = 0;
  bool is_final = false;
  std::string reason;
  bool operator==(const StopProposal&) const = default;
};
struct ServerLeaves {
  bool operator==(const ServerLeaves&) const = default;
};

/// `id` ties a reply to its request; 0 elsewhere.
struct Message {
  std::uint64_t id = 0;
  std::variant<JoinRequest, StoreRequest, MembersRequest, Heartbeat, FailureReport, StopRequest,
               StopAnswer, GoodBye, JoinReply, StoreReply, MembersReply, HeartbeatReply,
               VerdictNews, StopProposal, ServerLeaves>
      body;
  bool operator==(const Message&) const = default;
};

// Bounds of the parts. Longer ones are cut when written and refused when read.
inline constexpr std::size_t kLongestKey = 200;
inline constexpr std::size_t kLongestValue = std::size_t{1} << 20;
inline constexpr std::size_t kLongestText = 4096;
inline constexpr std::size_t kLongestName = 255;
inline constexpr std::size_t kMostGroups = 64;
inline constexpr std::size_t kMostMembers = 4096;
/// Of an encoded message: a StoreRequest with value and expected value is the longest.
inline constexpr std::size_t kLongestMessage = 2 * kLongestValue + 8192;

/// The form of the wire "tcp".
std::vector<std::byte> encode(const Message& message);
/// Nothing: no message. What is read encodes to the same bytes.
std::optional<Message> decode_message(std::span<const std::byte> bytes);

}  // namespace tutti::internal
