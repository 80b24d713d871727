// The wire grpc against the suite of every wire, its messages, and certificates on both sides.
// SPDX-License-Identifier: Apache-2.0
#include "tests/cluster/rpc_suite.h"
#include "tests/cluster/tls_files.h"
#include "tutti/cluster/rpc/grpc/grpc_frames.h"

namespace tutti::rpc_suite {

struct Grpc {
  static constexpr RpcWire kWire = RpcWire::kGrpc;
};
INSTANTIATE_TYPED_TEST_SUITE_P(Grpc, RpcSuite, Grpc);

namespace {

TEST(RpcGrpc, WithCertificatesThoseOfTheAuthorityComeIn) {
  const testing::HangWatchdog watchdog("rpc tls", std::chrono::seconds(60));
  Handler handler;
  auto options = server_options(RpcWire::kGrpc);
  options.tls = testing::make_certificate("rpc_job");
  const auto server = RpcServer::start(options, handler);
  auto asking = client_options();
  asking.tls = options.tls;
  const auto client = RpcClient::connect(server->target(), asking);
  const Packet request = packet("sealed", pattern(3 << 20, 5));
  EXPECT_EQ(all_of(client->call(request, late())), all_of(request));
  auto stranger = client_options();
  stranger.connect_timeout = 500ms;
  expect_error(ErrorCode::kDeadlineExceeded, {"worker 0 did not reach ps 1 ("},
               [&] { (void)RpcClient::connect(server->target(), stranger); });
  stranger.tls = testing::make_certificate("rpc_other");
  expect_error(ErrorCode::kDeadlineExceeded, {"worker 0 did not reach ps 1 ("},
               [&] { (void)RpcClient::connect(server->target(), stranger); });
}

TEST(RpcGrpc, ATakenPortIsAnError) {
  Handler handler;
  auto options = server_options(RpcWire::kGrpc);
  const auto server = RpcServer::start(options, handler);
  options.address = server->target().substr(7);
  expect_error(ErrorCode::kUnavailable, {"grpc: listening at " + options.address + " failed"},
               [&] { (void)RpcServer::start(options, handler); });
}

using internal::GrpcFrameReader;
using internal::GrpcFrameWriter;
using internal::RpcFrame;

/// As gRPC may hand it on: in slices of `cut` bytes, with one bit flipped or none.
grpc::ByteBuffer cut_up(const grpc::ByteBuffer& message, std::size_t cut, std::size_t flip) {
  grpc::Slice whole;
  EXPECT_TRUE(message.TrySingleSlice(&whole).ok() || message.DumpToSingleSlice(&whole).ok());
  std::vector<std::uint8_t> bytes(whole.begin(), whole.end());
  if (flip < 8 * bytes.size()) bytes[flip / 8] ^= static_cast<std::uint8_t>(1 << (flip % 8));
  std::vector<grpc::Slice> slices;
  for (std::size_t i = 0; i < bytes.size(); i += cut) {
    slices.emplace_back(&bytes[i], std::min(cut, bytes.size() - i));
  }
  return {slices.data(), slices.size()};
}

std::optional<RpcFrame> through_messages(RpcFrame frame, std::size_t cut, std::size_t flip) {
  GrpcFrameWriter writer({});
  GrpcFrameReader reader({}, std::size_t{8} << 20);
  writer.push(std::move(frame));
  std::vector<RpcFrame> sent;
  std::optional<RpcFrame> got;
  const auto lease = [](std::size_t) { return std::make_shared<int>(1); };
  while (!writer.is_empty()) {
    EXPECT_FALSE(got);
    reader.take(cut_up(writer.next(sent), cut, flip));
    got = reader.next(lease);
  }
  return got;
}

TEST(RpcGrpc, FramesComeWholeHoweverGrpcCutsThem) {
  for (const auto kind : {RpcFrame::Kind::kRequest, RpcFrame::Kind::kReply}) {
    for (const std::size_t payload : {0, 5, 16383, 16384, 100001, (1 << 20), (1 << 20) + 1}) {
      for (const std::size_t cut : {997, 65536, 1 << 30}) {
        RpcFrame frame;
        frame.kind = kind;
        frame.call = 7;
        frame.packet = packet("head", pattern(payload, 3));
        const auto got = through_messages(frame, cut, ~std::size_t{0});
        ASSERT_TRUE(got) << payload;
        EXPECT_EQ(got->packet.head, frame.packet.head);
        EXPECT_TRUE(all_of(got->packet) == all_of(frame.packet)) << payload << " in " << cut;
        const bool is_whole = got->packet.payload.size() == (payload > 0 ? 1 : 0);
        // An answer that came at once stays where it lies; a request is put together.
        EXPECT_TRUE(is_whole || kind == RpcFrame::Kind::kReply) << payload << " in " << cut;
      }
    }
  }
}

TEST(RpcGrpc, ABitThatWasFlippedInAnAnswerIsNeverTaken) {
  RpcFrame frame;
  frame.kind = RpcFrame::Kind::kReply;
  frame.packet = packet("head", pattern(20000, 3));
  for (std::size_t bit = 0; bit < 8 * 20000; bit += 61) {
    expect_error(ErrorCode::kDataLoss, {"rpc: "},
                 [&] { (void)through_messages(frame, 4096, bit); });
  }
}

}  // namespace
}  // namespace tutti::rpc_suite
