// Calls as messages of a stream, however gRPC cuts them, beside messages of the generated code.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/rpc/call_messages.h"

#include <algorithm>

#include "parameter_server.pb.h"
#include "tests/cluster/rpc_kit.h"

namespace tutti::rpc_suite {
namespace {

using internal::CallMessage;
using internal::CallReader;
using internal::CallWriter;
using Side = CallReader::Side;

std::string wire_bytes(const grpc::ByteBuffer& message) {
  grpc::Slice whole;
  EXPECT_TRUE(message.DumpToSingleSlice(&whole).ok());
  return {whole.begin(), whole.end()};
}

grpc::ByteBuffer cut_up(const std::string& bytes, std::size_t cut) {
  std::vector<grpc::Slice> slices;
  for (std::size_t i = 0; i < bytes.size(); i += cut) {
    slices.emplace_back(&bytes[i], std::min(cut, bytes.size() - i));
  }
  return {slices.data(), slices.size()};
}

std::vector<std::string> written(CallMessage message) {
  CallWriter writer;
  writer.push(std::move(message));
  std::vector<CallMessage> sent;
  std::vector<std::string> messages;
  while (!writer.is_empty()) messages.push_back(wire_bytes(writer.next(sent)));
  return messages;
}

std::optional<CallMessage> read(const std::vector<std::string>& messages, Side side,
                                std::size_t cut = std::size_t{1} << 30) {
  CallReader reader(side, std::size_t{8} << 20);
  std::optional<CallMessage> got;
  for (const std::string& each : messages) {
    EXPECT_FALSE(got);
    reader.take(cut_up(each, cut));
    got = reader.next([](std::size_t) { return std::make_shared<int>(1); });
  }
  return got;
}

TEST(CallMessages, ComeWholeHoweverGrpcCutsThem) {
  for (const Side side : {Side::kServer, Side::kClient}) {
    for (const std::size_t payload : {0, 5, 16383, 16384, 100001, (1 << 20), (1 << 20) + 1}) {
      for (const std::size_t cut : {997, 65536, 1 << 30}) {
        const CallMessage message{7, packet("head", pattern(payload, 3))};
        const auto got = read(written(message), side, cut);
        ASSERT_TRUE(got) << payload;
        EXPECT_EQ(got->call, 7u);
        EXPECT_EQ(got->packet.head, message.packet.head);
        EXPECT_TRUE(all_of(got->packet) == all_of(message.packet)) << payload << " in " << cut;
        const bool is_whole = got->packet.payload.size() == (payload > 0 ? 1 : 0);
        // An answer that came at once stays where it lies; a request is put together.
        EXPECT_TRUE(is_whole || side == Side::kClient) << payload << " in " << cut;
      }
    }
  }
}

TEST(CallMessages, AreThoseOfTheGeneratedCode) {
  v1::ApplyRequest request;
  request.set_call(300);
  request.mutable_batch()->set_term(5);
  request.set_tensor_bytes(130);
  request.set_tensors(std::string(130, 'x'));
  const std::string head = request.batch().SerializeAsString();
  const Bytes elements = bytes_of(request.tensors());
  const auto messages = written({300, packet(head, elements)});
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages.front(), request.SerializeAsString());
  const auto got = read({request.SerializeAsString()}, Side::kServer, 10);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->call, 300u);
  EXPECT_EQ(got->packet.head, bytes_of(head));
  EXPECT_EQ(all_of(got->packet), elements);
}

TEST(CallMessages, ErrorsKeepCodeAndText) {
  v1::ApplyReply reply;
  reply.set_call(4);
  reply.mutable_error()->set_code(static_cast<std::uint32_t>(ErrorCode::kNotFound));
  reply.mutable_error()->set_message("no variable 'w'");
  const auto messages = written({4, {}, Error(ErrorCode::kNotFound, "no variable 'w'")});
  EXPECT_EQ(messages, std::vector{reply.SerializeAsString()});
  const auto got = read(messages, Side::kClient);
  ASSERT_TRUE(got && got->error);
  EXPECT_EQ(got->error->code(), ErrorCode::kNotFound);
  EXPECT_EQ(got->error->message(), "no variable 'w'");
}

TEST(CallMessages, WhatIsNoneIsRefused) {
  const auto refuse = [](const std::vector<std::string>& messages, Side side,
                         const std::string& part) {
    expect_error(ErrorCode::kDataLoss, {part, "calls.proto"}, [&] { (void)read(messages, side); });
  };
  v1::ApplyRequest request;
  request.set_call(1);
  request.set_tensor_bytes(10);
  request.set_tensors("12345");
  v1::ApplyRequest more;
  more.set_call(1);
  more.set_tensors("123456");
  refuse({request.SerializeAsString(), more.SerializeAsString()}, Side::kServer,
         "more of tensors than was announced");
  more.set_tensors("");
  refuse({request.SerializeAsString(), more.SerializeAsString()}, Side::kServer,
         "nothing of tensors");
  more.set_call(2);
  more.set_tensors("12345");
  refuse({request.SerializeAsString(), more.SerializeAsString()}, Side::kServer, "another call");
  request.set_tensor_bytes((std::uint64_t{8} << 20) + 1);
  refuse({request.SerializeAsString()}, Side::kServer, "8388609 bytes");
  const std::string sound = written({7, packet("head", pattern(1000, 3))}).front();
  refuse({sound.substr(0, sound.size() - 1)}, Side::kServer, "another length");
  refuse({sound + "x"}, Side::kServer, "another length");
  v1::ApplyReply reply;
  reply.mutable_error()->set_code(static_cast<std::uint32_t>(ErrorCode::kNotFound));
  refuse({reply.SerializeAsString()}, Side::kServer, "an error");
  reply.mutable_error()->set_code(0);
  refuse({reply.SerializeAsString()}, Side::kClient, "an error");
}

/// Nothing is taken that was not sent, whatever bit changes; the fuzzer goes on from here.
TEST(CallMessages, ChangedBitsAreReadOrRefused) {
  const std::string sound = written({7, packet("head", pattern(300, 3))}).front();
  for (std::size_t bit = 0; bit < 8 * sound.size(); ++bit) {
    std::string changed = sound;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << (bit % 8)));
    try {
      const auto got = read({changed}, Side::kServer);
      EXPECT_LE(got ? got->packet.payload_bytes() : 0, 300u);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDataLoss);
    }
  }
}

}  // namespace
}  // namespace tutti::rpc_suite
