// TCP's own: frames, strangers, kept messages, ranks that do not join, and collectives over it.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "cluster/net/connection.h"
#include "cluster/net/handshake.h"
#include "cluster/net/socket.h"
#include "cross_device_ops/algorithms/algorithm.h"
#include "tests/cluster/acceptor_visitor.h"
#include "tests/cross_device_ops/engine_helpers.h"
#include "tests/cross_device_ops/traffic.h"
#include "tests/support/ranks.h"
#include "tests/support/tensor_matchers.h"
#include "tests/support/transports.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti {
namespace tcp_transport_test {
using testing::expect_error;
using namespace std::chrono_literals;
using testing::late;

TEST(TcpFrame, HeadersComeBackAsTheyWere) {
  using Kind = internal::FrameHeader::Kind;
  for (const internal::FrameHeader& header :
       {internal::FrameHeader{}, internal::FrameHeader{Kind::kMessage, 256, ~0ull, 1ull << 40},
        internal::FrameHeader{Kind::kAbort, 0, 0, 65536}}) {
    EXPECT_EQ(internal::decode_frame_header(internal::encode(header)), header);
  }
}

TEST(TcpFrame, EveryChangedBitOfAHeaderIsSeen) {
  const auto good = internal::encode(
      internal::FrameHeader{internal::FrameHeader::Kind::kMessage, 7, 0x0123456789abcdef, 4711});
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    auto bytes = good;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_ERROR(internal::decode_frame_header(bytes), kUnavailable, "damaged on the way",
                 "expected", "got");
  }
}

TEST(TcpFrame, LengthsAndKindsBeyondTheLimitsAreRefused) {
  using Kind = internal::FrameHeader::Kind;
  const auto expect_refusal = [](const internal::FrameHeader& header,
                                 const std::vector<std::string>& words) {
    expect_error(ErrorCode::kUnavailable, words,
                 [&] { internal::decode_frame_header(internal::encode(header)); });
  };
  expect_refusal({static_cast<Kind>(3), 0, 0, 0}, {"kind 1 or 2", "got 3"});
  expect_refusal({Kind::kMessage, 257, 0, 0}, {"at most 256", "got 257 and 0"});
  expect_refusal({Kind::kMessage, 0, 0, (1ull << 40) + 1}, {"1099511627776", "1099511627777"});
  expect_refusal({Kind::kAbort, 0, 0, 65537}, {"65536", "65537"});
  expect_refusal({Kind::kAbort, 1, 0, 0}, {"at most 0", "got 1 and 0"});
}

TEST(TcpFrame, AnnouncementsAreChecked) {
  v1::Build build;
  build.set_version("tutti 1.2.3");
  const internal::Announcement mine{12345, "machine", {"::1", 4711}, {"@0001f", 0}, 3, build};
  const auto parsed = internal::parse_announcement(internal::to_text(mine));
  ASSERT_TRUE(parsed);
  EXPECT_EQ(internal::to_text(*parsed), internal::to_text(mine));
  EXPECT_EQ(parsed->address(), "[::1]:4711");
  EXPECT_EQ(parsed->build.version(), "tutti 1.2.3");
  for (const char* text : {"", "1 m 127.0.0.1:4711"}) {
    EXPECT_FALSE(internal::parse_announcement(text)) << text;
  }
  for (const char* address : {"", "a", "a:0", "a:70000", ":5", "a:5x", "@0001f"}) {
    v1::RankAnnouncement message;
    message.set_address(address);
    *message.mutable_build() = build;
    EXPECT_FALSE(internal::parse_announcement(message.SerializeAsString())) << address;
    message.set_address("127.0.0.1:4711");
    EXPECT_TRUE(internal::parse_announcement(message.SerializeAsString()));
    message.set_local("127.0.0.1:4711");
    EXPECT_FALSE(internal::parse_announcement(message.SerializeAsString()));
  }
}

TEST(TcpTransport, StrangersAndLeftoversAreRefusedAndTheGroupStillForms) {
  InProcessStore store;
  // A listener that never answers, as an earlier run's value: rank 1 leaves it for the new one.
  const internal::Listener silent = internal::listen_at({"127.0.0.1", 0});
  store.set("ranks/0", internal::to_text({7, "m", silent.endpoint}));
  std::shared_ptr<Transport> zero, one;
  const auto higher =
      Executor::system().start("rank-1", [&] { one = connect_by_tcp(1, 2, store); });
  Clock::system().sleep_for(50ms);
  const auto lower =
      Executor::system().start("rank-0", [&] { zero = connect_by_tcp(0, 2, store); });
  higher->join();
  lower->join();
  std::array<std::byte, 1> byte{std::byte{5}}, got{};
  const auto recv = one->recv(0, 0, {}, got);
  zero->send(1, 0, {}, byte)->wait(late());
  recv->wait(late());
  EXPECT_EQ(got, byte);
}

TEST(TcpTransport, ConnectionsThatDoNotBelongAreToldWhy) {
  InProcessStore store;
  std::shared_ptr<Transport> zero, one;
  const auto lower =
      Executor::system().start("rank-0", [&] { zero = connect_by_tcp(0, 2, store); });
  const auto announced = internal::parse_announcement(store.wait("ranks/0", late())).value();
  const auto answer = [&](const internal::RankHello& hello) {
    const auto socket = acceptor_visitor::connect_to(announced.endpoint);
    return acceptor_visitor::shake_hands(socket, hello, {}).reason();
  };
  // Rank 1 has not announced itself yet, so these are of other runs.
  EXPECT_EQ(answer({1, 5}), "this is not the rank 1 that the store has");
  EXPECT_EQ(answer({7, 5}), "this is not the rank 7 that the store has");
  const auto noise = acceptor_visitor::connect_to(announced.endpoint);
  acceptor_visitor::say(noise, std::string(100, 'G'));
  EXPECT_TRUE(acceptor_visitor::gets_closed(noise));
  one = connect_by_tcp(1, 2, store);
  lower->join();
  EXPECT_EQ(zero->size(), 2);
}

TEST(TcpTransport, RanksThatWantGroupsOfDifferentSizeAreToldSo) {
  InProcessStore store;
  const std::vector<std::string> errors =
      errors_of_ranks(2, [&](int rank) { connect_by_tcp(rank, 2 + rank, store); });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("groups of different size met: "), std::string::npos) << error;
    EXPECT_NE(error.find("give all ranks one size"), std::string::npos) << error;
  }
}

TEST(TcpTransport, RanksThatDoNotComeAreNamed) {
  InProcessStore store;
  const ConnectOptions brief{.timeout = 50ms};
  EXPECT_ERROR(connect_by_tcp(0, 3, store, brief), kDeadlineExceeded, "rank 0 of 3",
               "rank 1, 2 did not come", "0.05 s");
  expect_error(ErrorCode::kDeadlineExceeded, {"rank 2 of 3", "rank 1 did not", "127.0.0.1:"}, [&] {
    InProcessStore other;
    const internal::Listener silent = internal::listen_at({"127.0.0.1", 0});
    other.set("ranks/0", "no announcement");
    other.set("ranks/1", internal::to_text({7, "m", silent.endpoint}));
    const auto zero = Executor::system().start(
        "rank-0", [&] { EXPECT_THROW(connect_by_tcp(0, 3, other, {.timeout = 300ms}), Error); });
    connect_by_tcp(2, 3, other, {.timeout = 300ms});
  });
  expect_error(ErrorCode::kDeadlineExceeded, {"rank 0 did not come", "'g/0'"}, [&] {
    InProcessStore empty;
    connect_by_tcp(1, 2, empty, {.timeout = 20ms, .key_prefix = "g"});
  });
  EXPECT_INVALID(connect_by_tcp(2, 2, store, brief), "rank 2 of 2");
  EXPECT_ERROR(
      connect_by_tcp(0, 2, store, {.address = "192.0.2.7", .allow_insecure_network = true}),
      kUnavailable, "192.0.2.7", "an address of this machine");
  expect_error(ErrorCode::kNotFound,
               {"rank 0 did not answer", "255.255.255.255:80", "Network is unreachable"}, [&] {
                 InProcessStore other;
                 other.set("ranks/0", internal::to_text({7, "m", {"255.255.255.255", 80}}));
                 connect_by_tcp(1, 2, other, brief);
               });
}

TEST(TcpTransport, MessagesThatNobodyReceivesAreKeptUpToALimit) {
  InProcessStore store;
  const ConnectOptions options{.bytes_kept = 1000};
  std::shared_ptr<Transport> zero;
  const auto lower =
      Executor::system().start("rank-0", [&] { zero = connect_by_tcp(0, 2, store, options); });
  const auto one = connect_by_tcp(1, 2, store, options);
  lower->join();
  std::vector<std::byte> bytes(600);
  std::array<std::byte, 1> byte{};
  const auto never = zero->recv(1, 99, {}, byte);
  one->send(0, 1, {}, bytes)->wait(late());
  zero->recv(1, 1, {}, bytes)->wait(late());  // makes room again
  one->send(0, 2, {}, bytes)->wait(late());
  one->send(0, 3, {}, bytes)->wait(late());
  EXPECT_ERROR(never->wait(late()), kResourceExhausted, "rank 1 (", "1000", "600 more with tag 3");
  zero->recv(1, 2, {}, bytes)->wait(late());  // what came before it is there
}

using namespace engine_tests;
using internal::message_engine;

/// body(transport) on a thread per rank, connected by TCP.
std::vector<std::optional<Error>> over_tcp(
    int size, const std::function<void(std::shared_ptr<Transport>)>& body) {
  InProcessStore store;
  return on_ranks(size, [&](int rank) { body(connect_by_tcp(rank, size, store)); });
}

TEST(MessageEngineOverTcp, SendsWhatItsScheduleSays) {
  for (const int size : {2, 3, 5}) {
    expect_no_errors(over_tcp(size, [&](std::shared_ptr<Transport> transport) {
      std::uint64_t sequence = 0;
      for (const internal::Algorithm& algorithm : internal::algorithms()) {
        const auto engine = message_engine(transport, algorithm.name);
        for (const std::size_t count : {0, 1, 1021, 80'021}) {
          TypedBytes data(DType::kFloat64, count, 1);
          for (std::size_t i = 0; i < count; ++i) data.set(i, transport->rank() + 1.0);
          const TransportStats before = transport->stats();
          all_reduce_call(data).run(*engine, sequence++);
          const TransportStats after = transport->stats();
          for (std::size_t i = 0; i < count; ++i) {
            if (data.get(i) == size * (size + 1) / 2.0) continue;
            fail(ErrorCode::kInternal, algorithm.name, ": element ", i, " of ", count, " is ",
                 data.get(i));
          }
          internal::CallShape shape{.size = size, .rank = transport->rank(), .count = count};
          shape.element_bytes = 8;
          shape.segment_bytes = internal::kNetworkSegmentBytes;
          const internal::Schedule schedule = make_schedule(algorithm, shape);
          const std::uint64_t bytes =
              traffic_of(schedule).elements * 8 + internal::kEncodedHeaderBytes;
          const std::uint64_t messages =
              traffic_of(schedule).messages +
              (greets_with_data(schedule, (transport->rank() + 1) % size) ? 0 : 1);
          if (after.bytes_sent - before.bytes_sent != bytes ||
              after.messages_sent - before.messages_sent != messages) {
            fail(ErrorCode::kInternal, algorithm.name, ": sent ",
                 after.messages_sent - before.messages_sent, " messages of ",
                 after.bytes_sent - before.bytes_sent, " bytes, expected ", messages, " of ",
                 bytes);
          }
        }
      }
    }));
  }
}

}  // namespace tcp_transport_test
}  // namespace tutti
