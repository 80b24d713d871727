// What a frame may announce.
// SPDX-License-Identifier: Apache-2.0
#include "tests/cluster/rpc_kit.h"
#include "tutti/cluster/rpc/rpc_frame.h"

namespace tutti::rpc_suite {
namespace {

using internal::RpcFrame;

constexpr std::size_t kLongest = std::size_t{8} << 20;

TEST(RpcFrames, PartsThatAKindDoesNotHaveAreRefused) {
  using Kind = RpcFrame::Kind;
  const auto check = [](Kind kind, ErrorCode code, const internal::RpcFrameSizes& sizes) {
    internal::check_announced(kind, code, sizes, kLongest);
  };
  check(Kind::kRequest, ErrorCode::kOk, {10, 10, 10});
  check(Kind::kReply, ErrorCode::kOk, {10, 0, 10});
  check(Kind::kError, ErrorCode::kAborted, {10, 0, 0});
  check(Kind::kOpen, ErrorCode::kOk, {0, 10, 0});
  check(Kind::kProbe, ErrorCode::kOk, {});
  const auto refuse = [&](Kind kind, ErrorCode code, const internal::RpcFrameSizes& sizes) {
    expect_error(ErrorCode::kDataLoss, {"rpc: "}, [&] { check(kind, code, sizes); });
  };
  refuse(static_cast<Kind>(0), ErrorCode::kOk, {});
  refuse(static_cast<Kind>(9), ErrorCode::kOk, {});
  refuse(Kind::kReply, ErrorCode::kOk, {0, 1, 0});
  refuse(Kind::kReply, ErrorCode::kAborted, {});
  refuse(Kind::kError, ErrorCode::kOk, {});
  refuse(Kind::kError, static_cast<ErrorCode>(2), {});
  refuse(Kind::kError, ErrorCode::kAborted, {0, 0, 1});
  refuse(Kind::kGoodBye, ErrorCode::kOk, {1, 0, 0});
  refuse(Kind::kProbe, ErrorCode::kOk, {0, 1, 0});
  refuse(Kind::kRequest, ErrorCode::kOk, {tutti::kLongestHead + 1, 0, 0});
  refuse(Kind::kRequest, ErrorCode::kOk, {0, internal::kMostCalls + 1, 0});
  refuse(Kind::kRequest, ErrorCode::kOk, {0, 0, kLongest + 1});
}

}  // namespace
}  // namespace tutti::rpc_suite
