// One session on one task: operations that come again, values that nobody needs, broken requests.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/session/task_session.h"

#include "tests/strategy/strategy_helpers.h"
#include "tests/support/tensor_matchers.h"

namespace tutti {
namespace {
namespace task_session_tests {

using strategy_tests::error_of;
using testing::expect_error;
using testing::expect_tensor;
using testing::HangWatchdog;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

/// A request that is answered here.
class HeldCall final : public RpcCall {
 public:
  const RpcPeer& peer() const override { return peer_; }
  const Packet& request() const override { return request_; }
  void reply(Packet answer) override {
    answer_ = std::move(answer);
    done_.set();
  }
  void fail(const Error& error) override {
    error_ = error;
    done_.set();
  }
  Packet answer() {
    EXPECT_TRUE(done_.wait_until(deadline_after(Clock::system().now(), 60s)));
    if (error_) throw *error_;
    return answer_;
  }

 private:
  RpcPeer peer_{{"client", 0, ""}, 0, 7, "here"};
  Packet request_;
  Packet answer_;
  std::optional<Error> error_;
  Event done_;
};

TEST(TaskSession, OperationsThatComeAgainAreNotDoneAgainAndReleasedValuesGo) {
  using internal::TaskRequest;
  using internal::TaskRequestKind;
  const HangWatchdog watchdog("operations that come again");
  std::atomic<int> num_runs = 0;
  TaskSteps steps;
  steps.define("count", [&num_runs] { return ++num_runs; });
  internal::VariableStore store("worker 0");
  const internal::TaskParts parts{{"worker", 0}, store, steps.registry(), {}};
  internal::TaskSession session(parts, 3, 10s);
  const auto request = [](TaskRequestKind kind, std::uint64_t op) {
    TaskRequest made{kind, 3, op, "count"};
    if (kind != TaskRequestKind::kRun) made.arguments.push_back({{{"worker", 0}, op}, {}});
    return internal::decode_task_request(internal::encode(made));
  };
  for (int repeat = 0; repeat < 3; ++repeat) {
    for (const std::uint64_t op : {1, 2}) {
      const auto call = std::make_shared<HeldCall>();
      session.post(request(TaskRequestKind::kRun, op), call);
      EXPECT_TRUE(call->answer().head.empty());
    }
  }
  EXPECT_EQ(num_runs, 2);
  const auto fetched = std::make_shared<HeldCall>();
  session.fetch(request(TaskRequestKind::kFetch, 2), fetched);
  EXPECT_EQ(internal::from_nest<int>(internal::decode_nest(fetched->answer()), "fetched"), 2);
  EXPECT_EQ(session.num_held(), 2u);
  session.release(request(TaskRequestKind::kRelease, 1));
  EXPECT_EQ(session.num_held(), 1u);
  const auto unheard = std::make_shared<HeldCall>();
  session.fetch(request(TaskRequestKind::kFetch, 9), unheard);
  session.end();
  EXPECT_THAT(error_of([&] { (void)unheard->answer(); }).message(),
              HasSubstr("worker 0: the session has ended"));
}

TEST(TaskSession, RequestsOfStrangersAreRefused) {
  using internal::TaskRequest;
  TaskRequest request{internal::TaskRequestKind::kRun, 3, 1, "step", "/device:CPU:1"};
  request.arguments.push_back({{{"worker", 1}, 4, {0, 2}}, {}});
  request.arguments.push_back({{}, Nest(Tensor::ones({100}))});
  Packet packet = internal::encode(request);
  const TaskRequest same = internal::decode_task_request(packet);
  EXPECT_EQ(same.arguments[0].from, request.arguments[0].from);
  EXPECT_EQ(same.device, request.device);
  expect_tensor(*same.arguments[1].value.tensor(), {100}, std::vector<double>(100, 1.0));
  packet.head.push_back(std::byte{0});
  expect_error(ErrorCode::kDataLoss, {"no such message"},
               [&] { (void)internal::decode_task_request(packet); });
  packet.head.resize(packet.head.size() / 2);
  EXPECT_EQ(error_of([&] { (void)internal::decode_task_request(packet); }).code(),
            ErrorCode::kDataLoss);
  packet = internal::encode(request);
  packet.payload.push_back(packet.payload.front());
  expect_error(ErrorCode::kDataLoss, {"bytes more"},
               [&] { (void)internal::decode_task_request(packet); });
  // Messages by hand: of no kind, an argument that is neither a value nor somewhere, none at all.
  const auto refused = [](std::vector<int> message, const std::string& part) {
    Packet made;
    for (const int each : message) made.head.push_back(static_cast<std::byte>(each));
    expect_error(ErrorCode::kDataLoss, {part}, [&] { (void)internal::decode_task_request(made); });
  };
  refused({0x08, 11}, "11 names nothing");
  refused({0x08, 2, 0x32, 0}, "a value or where it is");
  refused({0x08, 1}, "without arguments");
}

}  // namespace task_session_tests
}  // namespace
}  // namespace tutti
