// What is TCP's own: frames, strangers, kept messages, ranks that do not come.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/net/tcp_transport.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "tests/cluster/door_visitor.h"
#include "tests/support/hang_watchdog.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/cluster/net/frame.h"
#include "tutti/cluster/net/rendezvous.h"
#include "tutti/cluster/net/socket.h"
#include "tutti/core/executor.h"
#include "tutti/cross_device_ops/in_process/in_process_store.h"

namespace tutti {
namespace tcp_test {

using testing::expect_error;
using namespace std::chrono_literals;

TimePoint after(Duration duration) { return deadline_after(Clock::system().now(), duration); }

TEST(TcpFrame, HeadersAndHandshakesComeBackAsTheyWere) {
  const internal::FrameHeader header{internal::FrameHeader::Kind::kMessage, 256, ~0ull, 1ull << 40};
  EXPECT_EQ(internal::decode_frame_header(internal::encode(header)), header);
  const internal::Hello hello{3, 1, 7, 0x0123456789abcdef, ~0ull};
  EXPECT_EQ(internal::decode_hello(internal::encode(hello)), hello);
  const internal::Welcome welcome{internal::Welcome::Verdict::kStale, "another run"};
  EXPECT_EQ(internal::decode_welcome(internal::encode(welcome)), welcome);
  const auto cut = internal::decode_welcome(
      internal::encode(internal::Welcome{internal::Welcome::Verdict::kNo, std::string(500, 'x')}));
  EXPECT_EQ(cut.reason, std::string(200, 'x'));
}

TEST(TcpFrame, EveryFieldIsChecked) {
  const auto good = internal::encode(internal::FrameHeader{});
  const std::pair<std::size_t, int> changes[] = {{0, 0}, {4, 0}, {4, 3}, {5, 1}, {7, 2}, {22, 1}};
  for (const auto& [place, value] : changes) {
    auto bytes = good;
    bytes[place] = static_cast<std::byte>(value);
    expect_error(ErrorCode::kDataLoss, {"expected", "got"},
                 [&] { internal::decode_frame_header(bytes); });
  }
  const internal::FrameHeader abort{internal::FrameHeader::Kind::kAbort, 0, 0, 65537};
  expect_error(ErrorCode::kDataLoss, {"65536", "65537"},
               [&] { internal::decode_frame_header(internal::encode(abort)); });
  auto hello = internal::encode(internal::Hello{1, 0, 2, 5, 6});
  hello[8] = std::byte{9};
  expect_error(ErrorCode::kInvalidArgument, {"version", "expected 1, got 9"},
               [&] { internal::decode_hello(hello); });
  expect_error(ErrorCode::kInvalidArgument, {"no rank of tutti"},
               [&] { internal::decode_hello(std::array<std::byte, internal::kHelloBytes>{}); });
  for (const internal::Hello wrong :
       {internal::Hello{2, 0, 2}, internal::Hello{0, -1, 2}, internal::Hello{0, 0, 0}}) {
    expect_error(ErrorCode::kInvalidArgument, {"ranks below the size"},
                 [&] { internal::decode_hello(internal::encode(wrong)); });
  }
}

TEST(TcpFrame, AnnouncementsAreTextThatIsChecked) {
  const internal::Announcement mine{12345, "machine", {"::1", 4711}};
  EXPECT_EQ(internal::to_text(mine), "12345 machine [::1]:4711");
  const auto parsed = internal::parse_announcement(internal::to_text(mine));
  ASSERT_TRUE(parsed);
  EXPECT_EQ(internal::to_text(*parsed), internal::to_text(mine));
  for (const char* text : {"", "1", "1 m", "x m a:1", "1 m a", "1 m a:0", "1 m a:70000", "1 m :5",
                           "1 m a:5x", "1 m a:5 @xyz:6", "1 m @xyz:6"}) {
    EXPECT_FALSE(internal::parse_announcement(text)) << text;
  }
}

TEST(TcpTransport, StrangersAndLeftoversAreRefusedAndTheGroupStillForms) {
  const testing::HangWatchdog watchdog("strangers", 60s);
  InProcessStore store;
  // A listener that never answers, as an earlier run's value: rank 1 leaves it for the new one.
  const internal::Listener silent = internal::listen_at({"127.0.0.1", 0});
  store.set("tcp/0", internal::to_text({7, "m", silent.endpoint}));
  std::shared_ptr<Transport> zero, one;
  const auto higher = Executor::system().start("rank-1", [&] { one = tcp_transport(1, 2, store); });
  Clock::system().sleep_for(50ms);
  const auto lower = Executor::system().start("rank-0", [&] { zero = tcp_transport(0, 2, store); });
  higher->join();
  lower->join();
  std::array<std::byte, 1> byte{std::byte{5}}, got{};
  const auto recv = one->recv(0, 0, {}, got);
  zero->send(1, 0, {}, byte)->wait(after(60s));
  recv->wait(after(60s));
  EXPECT_EQ(got, byte);
}

TEST(TcpTransport, ConnectionsThatDoNotBelongAreToldWhy) {
  const testing::HangWatchdog watchdog("refusals", 60s);
  InProcessStore store;
  std::shared_ptr<Transport> zero, one;
  const auto lower = Executor::system().start("rank-0", [&] { zero = tcp_transport(0, 2, store); });
  const auto announced = internal::parse_announcement(store.wait("tcp/0", after(60s))).value();
  const auto answer = [&](const internal::Hello& hello) {
    return door_visitor::answer_to(announced.endpoint, hello);
  };
  using Verdict = internal::Welcome::Verdict;
  const auto stale = answer({1, 0, 2, 5, 6});
  EXPECT_EQ(stale.verdict, Verdict::kStale);
  EXPECT_NE(stale.reason.find("another run"), std::string::npos) << stale.reason;
  const auto size = answer({1, 0, 3, 5, announced.nonce});
  EXPECT_EQ(size.verdict, Verdict::kNo);
  EXPECT_NE(size.reason.find("group of 3 ranks; expected 2"), std::string::npos) << size.reason;
  const auto unknown = answer({1, 0, 2, 5, announced.nonce});
  EXPECT_EQ(unknown.verdict, Verdict::kStale);
  const auto noise = door_visitor::knock(announced.endpoint);
  door_visitor::say(noise, std::string(100, 'G'));
  EXPECT_TRUE(door_visitor::gets_closed(noise));
  one = tcp_transport(1, 2, store);
  lower->join();
  EXPECT_EQ(zero->size(), 2);
}

TEST(TcpTransport, RanksThatDoNotComeAreNamed) {
  InProcessStore store;
  const TcpOptions brief{.timeout = 50ms};
  expect_error(ErrorCode::kDeadlineExceeded, {"rank 0 of 3", "rank 1, 2 did not come", "0.05 s"},
               [&] { tcp_transport(0, 3, store, brief); });
  expect_error(ErrorCode::kDeadlineExceeded, {"rank 2 of 3", "rank 1 did not", "127.0.0.1:"}, [&] {
    InProcessStore other;
    const internal::Listener silent = internal::listen_at({"127.0.0.1", 0});
    other.set("tcp/0", "no announcement");
    other.set("tcp/1", internal::to_text({7, "m", silent.endpoint}));
    const auto zero = Executor::system().start(
        "rank-0", [&] { EXPECT_THROW(tcp_transport(0, 3, other, {.timeout = 300ms}), Error); });
    tcp_transport(2, 3, other, {.timeout = 300ms});
  });
  expect_error(ErrorCode::kDeadlineExceeded, {"rank 0 did not come", "'g/0'"}, [&] {
    InProcessStore empty;
    tcp_transport(1, 2, empty, {.timeout = 20ms, .key_prefix = "g"});
  });
  expect_error(ErrorCode::kInvalidArgument, {"rank 2 of 2"},
               [&] { tcp_transport(2, 2, store, brief); });
  expect_error(ErrorCode::kUnavailable, {"192.0.2.7", "an address of this machine"}, [&] {
    tcp_transport(0, 2, store, {.address = "192.0.2.7", .allow_insecure_network = true});
  });
  expect_error(ErrorCode::kNotFound,
               {"rank 0 did not answer", "255.255.255.255:80", "Network is unreachable"}, [&] {
                 InProcessStore other;
                 other.set("tcp/0", internal::to_text({7, "m", {"255.255.255.255", 80}}));
                 tcp_transport(1, 2, other, brief);
               });
}

TEST(TcpTransport, MessagesThatNobodyReceivesAreKeptUpToALimit) {
  const testing::HangWatchdog watchdog("kept messages", 60s);
  InProcessStore store;
  const TcpOptions options{.bytes_kept = 1000};
  std::shared_ptr<Transport> zero;
  const auto lower =
      Executor::system().start("rank-0", [&] { zero = tcp_transport(0, 2, store, options); });
  const auto one = tcp_transport(1, 2, store, options);
  lower->join();
  std::vector<std::byte> bytes(600);
  std::array<std::byte, 1> byte{};
  const auto never = zero->recv(1, 99, {}, byte);
  one->send(0, 1, {}, bytes)->wait(after(60s));
  zero->recv(1, 1, {}, bytes)->wait(after(60s));  // makes room again
  one->send(0, 2, {}, bytes)->wait(after(60s));
  one->send(0, 3, {}, bytes)->wait(after(60s));
  expect_error(ErrorCode::kResourceExhausted, {"rank 1 (", "1000", "600 more with tag 3"},
               [&] { never->wait(after(60s)); });
  zero->recv(1, 2, {}, bytes)->wait(after(60s));  // what came before it is there
}

}  // namespace tcp_test
}  // namespace tutti
