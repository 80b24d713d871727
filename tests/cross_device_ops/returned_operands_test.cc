// Operands that a collective sends and then overwrites: when their memory is asked for.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <utility>

#include "tests/cross_device_ops/engine_helpers.h"
#include "tests/support/hang_watchdog.h"

namespace tutti {
namespace returned_operands_test {

using namespace engine_tests;
using internal::message_engine;

/// A transport whose sends end when somebody asks for their end, as those of a stream that lends.
class LendingTransport final : public Transport {
 public:
  explicit LendingTransport(std::shared_ptr<Transport> inner) : inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string_view name() const override { return inner_->name(); }
  bool spans_processes() const override { return inner_->spans_processes(); }
  std::unique_ptr<Work> send(int peer, std::uint64_t tag, std::span<const std::byte> head,
                             std::span<const std::byte> body) override {
    inner_->send(peer, tag, head, body)
        ->wait(deadline_after(Clock::system().now(), std::chrono::seconds(60)));
    return std::make_unique<Loan>(*this, body);
  }
  std::unique_ptr<Work> recv(int peer, std::uint64_t tag, std::span<std::byte> head,
                             std::span<std::byte> body) override {
    return std::make_unique<Awaited>(*this, inner_->recv(peer, tag, head, body));
  }
  void abort(const Error& reason) noexcept override { inner_->abort(reason); }
  TransportStats stats() const override { return inner_->stats(); }

  std::string events;
  bool can_move = false;

 private:
  struct Loan final : Work {
    Loan(LendingTransport& owner, std::span<const std::byte> body)
        : owner(owner), body(body), sent(body.begin(), body.end()) {}
    bool test() override {
      if (!std::exchange(has_ended, true)) {
        owner.events += std::ranges::equal(body, sent) ? "returned " : "changed before ";
      }
      return true;
    }
    ~Loan() override {
      if (!has_ended) owner.events += std::ranges::equal(body, sent) ? "dropped " : "changed ";
    }
    bool ended_by_now() override { return has_ended; }
    void wait(TimePoint) override { test(); }
    bool can_move_body() const override { return owner.can_move && !has_ended; }
    void move_body(std::span<const std::byte> to, const std::function<void()>& move) override {
      move();
      body = to;
      owner.events += "moved ";
    }
    LendingTransport& owner;
    std::span<const std::byte> body;
    const std::vector<std::byte> sent;
    bool has_ended = false;
  };
  struct Awaited final : Work {
    Awaited(LendingTransport& owner, std::unique_ptr<Work> work)
        : owner(owner), work(std::move(work)) {}
    bool test() override { return work->test(); }
    void wait(TimePoint deadline) override {
      owner.events += "waited ";
      work->wait(deadline);
    }
    LendingTransport& owner;
    const std::unique_ptr<Work> work;
  };

  const std::shared_ptr<Transport> inner_;
};

TEST(MessageEngine, AnOperandThatTheResultOverwritesIsReturnedWhileTheOtherOneIsAwaited) {
  const testing::HangWatchdog watchdog("returned while awaited", std::chrono::seconds(60));
  const Transports transports = in_process_transports(2);
  expect_no_errors(on_ranks(2, [&](int rank) {
    const auto lending =
        std::make_shared<LendingTransport>(transports[static_cast<std::size_t>(rank)]);
    const auto engine = message_engine(lending, "canonical");
    TypedBytes data(DType::kFloat32, 1000);
    for (std::size_t i = 0; i < 1000; ++i) data.set(i, static_cast<double>(i) + rank);
    all_reduce_call(data).run(*engine, 0);
    for (std::size_t i = 0; i < 1000; ++i) {
      const double expected = 2 * static_cast<double>(i) + 1;
      if (data.get(i) != expected) fail(ErrorCode::kInternal, i, ": got ", data.get(i));
    }
    if (lending->events != "returned waited ") {
      fail(ErrorCode::kInternal, "expected 'returned waited ', got '", lending->events, "'");
    }
  }));
}

/// In place or not; what the engine asked of its sends.
std::string events_of_sums(int calls, DType dtype, bool in_place) {
  std::array<std::string, 2> events;
  const Transports transports = in_process_transports(2);
  expect_no_errors(on_ranks(2, [&](int rank) {
    const auto place = static_cast<std::size_t>(rank);
    const auto lending = std::make_shared<LendingTransport>(transports[place]);
    lending->can_move = true;
    const auto engine = message_engine(lending, "canonical");
    for (int call = 0; call < calls; ++call) {
      TypedBytes data(dtype, 1000), result(dtype, 1000);
      for (std::size_t i = 0; i < 1000; ++i) data.set(i, static_cast<double>(i) + call + rank);
      TestCall sum = all_reduce_call(data);
      if (!in_place) sum.outputs = {result.elements()};
      sum.run(*engine, static_cast<std::uint64_t>(call));
      for (std::size_t i = 0; i < 1000; ++i) {
        const double got = (in_place ? data : result).get(i);
        if (got != 2.0 * (static_cast<double>(i) + call) + 1) fail(ErrorCode::kInternal, i, got);
      }
    }
    events[place] = lending->events;
  }));
  EXPECT_EQ(events[0], events[1]);
  return events[0];
}

// What has moved stays as it is until the call after the next one needs its place.
TEST(MessageEngine, AnOperandThatMayMoveChangesPlacesWithTheSum) {
  const testing::HangWatchdog watchdog("moved operands", std::chrono::seconds(60));
  EXPECT_EQ(events_of_sums(1, DType::kFloat32, true), "waited moved ");
  EXPECT_EQ(events_of_sums(4, DType::kFloat32, true),
            "waited moved waited moved dropped waited moved dropped waited moved ");
}

TEST(MessageEngine, OtherOperandsStayWhereTheyAre) {
  const testing::HangWatchdog watchdog("operands that stay", std::chrono::seconds(60));
  EXPECT_EQ(events_of_sums(2, DType::kFloat64, true), "returned waited returned waited ");
  EXPECT_EQ(events_of_sums(2, DType::kFloat32, false), "waited returned waited returned ");
}

}  // namespace returned_operands_test
}  // namespace tutti
