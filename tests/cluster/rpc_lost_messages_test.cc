// Calls over a wire grpc that drops a message, or waits for the rest of one, without a word.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <atomic>
#include <optional>

#include "tests/cluster/rpc_kit.h"
#include "tutti/cluster/tcp/stream.h"

namespace tutti::rpc_suite {
namespace {

/// A proxy that knows the frames of HTTP/2 (RFC 9113, 4.1), and leaves out some that carry data:
/// what a damaged number of a stream makes of them. Or it damages the length of the message in it.
class LeavingOut {
 public:
  enum Way { kToServer, kToClient };
  explicit LeavingOut(internal::Endpoint target)
      : target_(std::move(target)), listener_(internal::listen_on("127.0.0.1")) {
    thread_ = Executor::system().start("leaving-out", [this] { run(); });
  }
  ~LeavingOut() {
    stops_ = true;
    thread_->join();
  }
  std::string target() const { return concat("grpc://", listener_.endpoint.to_string()); }
  /// The next so many frames with data.
  void leave_out(Way way, int count) { to_leave_out_.at(way) = count; }
  /// The next one's message becomes longer by a mebibyte.
  void stretch(Way way) { to_stretch_.at(way) = true; }
  int num_left_out() const { return left_out_; }
  int num_connections() const { return connections_; }
  int num_passed(Way way) const { return passed_.at(way); }

 private:
  static constexpr std::size_t kPreface = 24, kHeader = 9;
  struct Direction {
    Bytes came = {}, goes = {};
    std::size_t preface = 0;  // bytes to come before the first frame
  };
  struct Pair {
    std::array<internal::FileDescriptor, 2> ends;  // the client's, the server's
    std::array<Direction, 2> ways;
    bool is_over = false;
  };

  void run() {
    while (!stops_) {
      std::vector<pollfd> descriptors{{listener_.socket.get(), POLLIN, 0}};
      for (const Pair& pair : pairs_) {
        for (const auto& end : pair.ends) descriptors.push_back({end.get(), POLLIN, 0});
      }
      (void)internal::poll_until(descriptors, in(5ms));
      accept();
      for (Pair& pair : pairs_) {
        move(pair, kToServer);
        move(pair, kToClient);
      }
      std::erase_if(pairs_, [](const Pair& pair) { return pair.is_over; });
    }
  }
  void accept() {
    internal::FileDescriptor client = internal::accept_from(listener_.socket);
    if (!client.is_open()) return;
    internal::FileDescriptor server = internal::connect_until(target_, in(60s)).socket;
    if (!server.is_open()) return;
    ++connections_;
    Pair& pair = pairs_.emplace_back();
    pair.ends = {std::move(client), std::move(server)};
    pair.ways[kToServer].preface = kPreface;
  }
  void move(Pair& pair, Way way) {
    Direction& direction = pair.ways.at(way);
    Bytes bytes(65536);
    std::size_t count = 0;
    const auto flow = internal::read_now(pair.ends.at(way), std::span<std::byte>(bytes), count);
    direction.came.insert(direction.came.end(), bytes.begin(),
                          bytes.begin() + static_cast<std::ptrdiff_t>(count));
    while (take_part(direction, way)) {
    }
    const auto sent = internal::write_now(pair.ends.at(1 - way),
                                          std::span<const std::byte>(direction.goes), count);
    direction.goes.erase(direction.goes.begin(),
                         direction.goes.begin() + static_cast<std::ptrdiff_t>(count));
    const auto closed = internal::ByteFlow::kClosed;
    pair.is_over = pair.is_over || flow == closed || sent == closed;
  }
  /// The preface or the next frame, if it is whole.
  bool take_part(Direction& direction, Way way) {
    const auto number = [&](std::size_t at) {
      return std::to_integer<std::size_t>(direction.came[at]);
    };
    std::size_t size = direction.preface;
    if (size == 0) {
      if (direction.came.size() < kHeader) return false;
      size = kHeader + (number(0) << 16 | number(1) << 8 | number(2));
    }
    if (direction.came.size() < size) return false;
    const auto end = direction.came.begin() + static_cast<std::ptrdiff_t>(size);
    const bool is_data = direction.preface == 0 && number(3) == 0 && size > kHeader;
    const bool is_left_out = is_data && to_leave_out_.at(way) > 0;
    if (is_left_out) {
      --to_leave_out_.at(way);
      ++left_out_;
    } else {
      if (is_data && to_stretch_.at(way).exchange(false)) {
        direction.came[kHeader + 2] |= std::byte{0x10};  // the prefix: a flag and 32 bits
      }
      direction.goes.insert(direction.goes.end(), direction.came.begin(), end);
      if (is_data) ++passed_.at(way);
    }
    direction.preface = 0;
    direction.came.erase(direction.came.begin(), end);
    return true;
  }

  const internal::Endpoint target_;
  const internal::Listener listener_;
  std::vector<Pair> pairs_;
  std::array<std::atomic<int>, 2> to_leave_out_{}, passed_{};
  std::array<std::atomic<bool>, 2> to_stretch_{};
  std::atomic<int> left_out_{0}, connections_{0};
  std::atomic<bool> stops_{false};
  std::unique_ptr<Thread> thread_;
};

class RpcLostMessages : public ::testing::Test {
 protected:
  explicit RpcLostMessages(Handler::Take take = Handler::echo)
      : handler_([this, take = std::move(take)](const std::shared_ptr<RpcCall>& call) {
          if (text_of(call->request().head) == "asked") ++times_;
          take(call);
        }) {}

  const testing::HangWatchdog watchdog_{"rpc lost messages", std::chrono::seconds(100)};
  std::atomic<int> times_{0};
  Handler handler_;
  const std::unique_ptr<RpcServer> server_ =
      RpcServer::start(server_options(RpcWire::kGrpc), handler_);
  LeavingOut wire_{*internal::parse_endpoint(server_->target().substr(7))};
};

/// Nothing else is sent, so nothing but a probe can show that there is a gap.
TEST_F(RpcLostMessages, G7_ALostRequestOrAnswerComesAgainOnce) {
  const auto client = RpcClient::connect(wire_.target(), client_options());
  for (const auto way : {LeavingOut::kToServer, LeavingOut::kToClient}) {
    (void)client->call(packet("before"), late());
    const int num_connections = wire_.num_connections();
    times_ = 0;
    wire_.leave_out(way, 1);
    EXPECT_EQ(text_of(client->call(packet("asked"), late()).head), "asked");
    EXPECT_EQ(times_, 1);
    EXPECT_EQ(wire_.num_connections(), num_connections + 1);
  }
  EXPECT_EQ(wire_.num_left_out(), 2);
}

TEST_F(RpcLostMessages, G7_AProbeThatGetsLostIsFollowedByAnother) {
  const auto client = RpcClient::connect(wire_.target(), client_options());
  (void)client->call(packet("before"), late());
  wire_.leave_out(LeavingOut::kToServer, 2);
  EXPECT_EQ(text_of(client->call(packet("asked"), late()).head), "asked");
  EXPECT_EQ(times_, 1);
  EXPECT_EQ(wire_.num_left_out(), 2);
  EXPECT_EQ(wire_.num_connections(), 2);
}

TEST_F(RpcLostMessages, G7_AMessageWhoseLengthWasDamagedIsNotWaitedForForLong) {
  LeavingOut other(*internal::parse_endpoint(server_->target().substr(7)));
  const auto client = RpcClient::connect(wire_.target(), client_options());
  const auto second = RpcClient::connect(other.target(), client_options());
  (void)client->call(packet("before"), late());
  (void)second->call(packet("before"), late());
  wire_.stretch(LeavingOut::kToServer);
  other.stretch(LeavingOut::kToClient);
  const auto reply = client->start(packet("asked"));
  EXPECT_EQ(text_of(second->call(packet("asked"), late()).head), "asked");
  EXPECT_EQ(text_of(reply->wait(late()).head), "asked");
  EXPECT_EQ(times_, 2);
  EXPECT_EQ(wire_.num_connections(), 2);
  EXPECT_EQ(other.num_connections(), 2);
}

class RpcLongCalls : public RpcLostMessages {
 protected:
  RpcLongCalls()
      : RpcLostMessages([](const std::shared_ptr<RpcCall>& call) {
          if (text_of(call->request().head) == "asked") Clock::system().sleep_for(2200ms);
          Handler::echo(call);
        }) {}
};

TEST_F(RpcLongCalls, ProbesDisturbNoHandlerThatWorksForLong) {
  const auto client = RpcClient::connect(wire_.target(), client_options());
  (void)client->call(packet("before"), late());
  const int num_passed = wire_.num_passed(LeavingOut::kToServer);
  EXPECT_EQ(text_of(client->call(packet("asked"), late()).head), "asked");
  EXPECT_GE(wire_.num_passed(LeavingOut::kToServer), num_passed + 2);  // one a second, and it
  EXPECT_EQ(times_, 1);
  EXPECT_EQ(wire_.num_connections(), 1);
}

}  // namespace
}  // namespace tutti::rpc_suite
