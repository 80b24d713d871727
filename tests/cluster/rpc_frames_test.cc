// Frames as bytes on the wire tcp: cut anywhere, damaged anywhere, announced too long.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tests/cluster/rpc_kit.h"
#include "tutti/cluster/rpc/tcp_bytes.h"

namespace tutti::rpc_suite {
namespace {

using internal::RpcFrame;
using internal::RpcReader;
using internal::RpcWriter;

constexpr std::size_t kLongest = std::size_t{8} << 20;

RpcFrame request_with(std::uint64_t call, std::size_t head, std::vector<std::size_t> pieces) {
  RpcFrame frame;
  frame.kind = RpcFrame::Kind::kRequest;
  frame.call = call;
  frame.numbers = {1, 2, call};
  frame.packet.head = pattern(head, static_cast<unsigned>(call));
  for (const std::size_t piece : pieces) {
    frame.packet.payload.push_back(shared(pattern(piece, static_cast<unsigned>(piece + call))));
  }
  return frame;
}

/// What the writer wants written, `at_once` bytes at a time.
Bytes written(std::vector<RpcFrame> frames, std::size_t at_once = 1 << 30, Digest256 key = {}) {
  RpcWriter writer(key);
  for (RpcFrame& frame : frames) writer.push(std::move(frame));
  Bytes bytes;
  std::vector<RpcFrame> sent;
  while (!writer.is_empty()) {
    std::size_t count = 0;
    for (const iovec& place : writer.next()) {
      const std::size_t n = std::min(place.iov_len, at_once - count);
      const auto* const data = static_cast<const std::byte*>(place.iov_base);
      bytes.insert(bytes.end(), data, data + n);
      count += n;
    }
    writer.wrote(count, sent);
  }
  EXPECT_EQ(sent.size(), frames.size());
  return bytes;
}

/// Feeds bytes as a socket would, at most `at_once` of them.
std::vector<RpcFrame> read(RpcReader& reader, std::span<const std::byte> bytes,
                           std::size_t at_once = 1 << 30, const RpcReader::Lease& lease = {}) {
  std::vector<RpcFrame> frames;
  while (!bytes.empty()) {
    std::size_t count = 0;
    for (const auto& place : reader.places()) {
      const std::size_t n = std::min({place.size(), at_once - count, bytes.size()});
      std::copy_n(bytes.begin(), n, place.begin());
      bytes = bytes.subspan(n);
      count += n;
    }
    if (count == 0) break;
    reader.filled(count);
    while (auto frame = reader.next(lease)) frames.push_back(*std::move(frame));
  }
  return frames;
}

void expect_same(const RpcFrame& got, const RpcFrame& expected) {
  EXPECT_EQ(got.kind, expected.kind);
  EXPECT_EQ(got.code, expected.code);
  EXPECT_EQ(got.call, expected.call);
  EXPECT_EQ(got.numbers, expected.numbers);
  EXPECT_EQ(got.packet.head, expected.packet.head);
  EXPECT_TRUE(all_of(got.packet) == all_of(expected.packet));
}

std::vector<RpcFrame> some_frames() {
  std::vector<RpcFrame> frames;
  frames.push_back(request_with(5, 0, {}));
  frames.push_back(request_with(6, 100, {1, 64, 100000, 3}));
  frames.push_back(internal::error_frame(7, Error(ErrorCode::kNotFound, "no such row")));
  frames.push_back(request_with(8, 70000, {(2 << 20) + 5, 1 << 20}));
  frames.push_back(request_with(9, 1, {1 << 20}));
  return frames;
}

TEST(RpcFrames, ArriveHoweverTheyAreCut) {
  for (const std::size_t sent_at_once : {std::size_t{1} << 30, std::size_t{77777}}) {
    const Bytes bytes = written(some_frames(), sent_at_once);
    for (const std::size_t at_once : {1 << 30, 1 << 20, 65537, 4099, 509}) {
      RpcReader reader({}, kLongest);
      const auto frames = read(reader, bytes, at_once);
      const auto expected = some_frames();
      ASSERT_EQ(frames.size(), expected.size()) << at_once;
      for (std::size_t i = 0; i < frames.size(); ++i) expect_same(frames[i], expected[i]);
    }
  }
}

TEST(RpcFrames, ABitThatWasFlippedOrAFrameAtTheWrongPlaceIsNeverTaken) {
  const auto frames_of = [] {
    std::vector<RpcFrame> frames;
    frames.push_back(request_with(3, 20, {40}));
    frames.push_back(request_with(4, 5, {}));
    return frames;
  };
  const Bytes good = written(frames_of());
  const auto expected = frames_of();
  for (std::size_t i = 0; i < 8 * good.size(); ++i) {
    Bytes bytes = good;
    bytes[i / 8] ^= std::byte{1} << (i % 8);
    RpcReader reader({}, kLongest);
    std::vector<RpcFrame> frames;
    expect_error(ErrorCode::kDataLoss, {"rpc: "}, [&] {
      for (const std::byte byte : bytes) {
        for (auto& frame : read(reader, std::span(&byte, 1))) frames.push_back(std::move(frame));
      }
    });
    ASSERT_LE(frames.size(), 1u) << "bit " << i;
    if (!frames.empty()) expect_same(frames[0], expected[0]);
    expect_error(ErrorCode::kDataLoss, {"after a damaged one"}, [&] { (void)reader.next({}); });
  }
  // Of another connection, and the same one twice.
  Digest256 other_key{};
  other_key[3] = std::byte{1};
  RpcReader other(other_key, kLongest);
  expect_error(ErrorCode::kDataLoss, {"rpc: "}, [&] { (void)read(other, good); });
  Bytes twice = written({});
  RpcFrame one = request_with(3, 20, {});
  std::vector<RpcFrame> single;
  single.push_back(std::move(one));
  twice = written(std::move(single));
  const Bytes once = twice;
  twice.insert(twice.end(), once.begin(), once.end());
  RpcReader reader({}, kLongest);
  expect_error(ErrorCode::kDataLoss, {"frame 1 was damaged"}, [&] { (void)read(reader, twice); });
}

TEST(RpcFrames, AskForRoomBeforeTheyTakeMemory) {
  std::vector<RpcFrame> one;
  one.push_back(request_with(3, 20, {1 << 20}));
  const Bytes bytes = written(std::move(one));
  RpcReader strict({}, (1 << 20) - 1);
  expect_error(ErrorCode::kDataLoss, {"1048576 bytes of payload", "at most"},
               [&] { (void)read(strict, std::span(bytes).first(internal::kRpcFixedBytes)); });
  RpcReader reader({}, kLongest);
  std::size_t asked = 0;
  bool has_room = false;
  const auto lease = [&](std::size_t wanted) -> std::shared_ptr<void> {
    asked = wanted;
    return has_room ? std::make_shared<int>(1) : nullptr;
  };
  EXPECT_TRUE(read(reader, std::span(bytes).first(100), 1 << 30, lease).empty());
  EXPECT_EQ(asked, (1u << 20) + 20);
  EXPECT_TRUE(reader.waits_for_room());
  EXPECT_TRUE(reader.places()[0].empty());
  has_room = true;
  EXPECT_FALSE(reader.next(lease).has_value());
  EXPECT_FALSE(reader.waits_for_room());
  const auto frames = read(reader, std::span(bytes).subspan(100), 1 << 30, lease);
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_NE(frames[0].lease, nullptr);
  expect_same(frames[0], request_with(3, 20, {1 << 20}));
}

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
