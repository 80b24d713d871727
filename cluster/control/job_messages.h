// Conversion of members, verdicts and progress to and from the messages of job.proto.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "cluster/control/member.h"
#include "job.pb.h"

namespace tutti::internal {

/// Truncates the text to `longest` bytes and replaces invalid UTF-8, which protobuf's `string`
/// rejects, with question marks.
std::string proto_text(std::string_view text, std::size_t longest = 4096);

v1::Member to_proto(const Member& member);
Member from_proto(const v1::Member& member);
v1::Verdict to_proto(const Verdict& verdict);
Verdict from_proto(const v1::Verdict& verdict);
v1::Progress to_proto(const MemberProgress& progress);
MemberProgress from_proto(const v1::Progress& progress);
JoiningProcess from_proto(const v1::JoinRequest& request);

}  // namespace tutti::internal
