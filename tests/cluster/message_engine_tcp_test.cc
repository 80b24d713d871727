// Collectives over TCP: the algorithms on a transport that keeps messages and breaks.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/algorithms/algorithm.h"
#include "tests/cross_device_ops/engine_helpers.h"
#include "tests/cross_device_ops/traffic.h"
#include "tests/support/hang_watchdog.h"
#include "tests/support/transports.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti {
namespace message_engine_tcp_test {

using namespace engine_tests;
using internal::message_algorithms;
using internal::message_engine;

/// body(transport) on a thread per rank, connected by TCP.
std::vector<std::optional<Error>> over_tcp(
    int size, const std::function<void(std::shared_ptr<Transport>)>& body) {
  InProcessStore store;
  return on_ranks(size, [&](int rank) { body(connect_by_tcp(rank, size, store)); });
}

void fill_rank(TypedBytes& data, int rank) {
  for (std::size_t i = 0; i < data.count(); ++i) {
    data.set(i, static_cast<double>((i * 3 + static_cast<std::size_t>(rank)) % 11) - 4.0);
  }
}

void expect_sum(const TypedBytes& data, int size) {
  for (std::size_t i = 0; i < data.count(); ++i) {
    double expected = 0;
    for (int r = 0; r < size; ++r) {
      expected += static_cast<double>((i * 3 + static_cast<std::size_t>(r)) % 11) - 4.0;
    }
    if (data.get(i) != expected) fail(ErrorCode::kInternal, "element ", i, " is ", data.get(i));
  }
}

TEST(MessageEngineOverTcp, SumsAndSendsWhatItsScheduleSays) {
  const testing::HangWatchdog watchdog("collectives over TCP", std::chrono::seconds(100));
  for (const int size : {2, 3, 5}) {
    expect_no_errors(over_tcp(size, [&](std::shared_ptr<Transport> transport) {
      std::uint64_t sequence = 0;
      for (const internal::Algorithm& algorithm : internal::algorithms()) {
        const auto engine = message_engine(transport, algorithm.name);
        for (const std::size_t count : {0, 1, 1021, 80'021}) {
          TypedBytes data(DType::kFloat64, count, 1);
          fill_rank(data, transport->rank());
          const TransportStats before = transport->stats();
          all_reduce_call(data).run(*engine, sequence++);
          const TransportStats after = transport->stats();
          expect_sum(data, size);
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

TEST(MessageEngineOverTcp, AMismatchIsSeenByAll) {
  const testing::HangWatchdog watchdog("a mismatch over TCP", std::chrono::seconds(100));
  for (const std::string& name : message_algorithms()) {
    for (int wrong = 0; wrong < 3; ++wrong) {
      const auto errors = over_tcp(3, [&](std::shared_ptr<Transport> transport) {
        const auto engine = message_engine(transport, name);
        TypedBytes data(DType::kFloat32, transport->rank() == wrong ? 101 : 100);
        all_reduce_call(data).run(*engine, 0);
      });
      for (const auto& error : errors) {
        ASSERT_TRUE(error) << name;
        EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument) << error->what();
        EXPECT_EQ(error->message().find("collective mismatch (count): rank "), 0u) << error->what();
      }
    }
  }
}

TEST(MessageEngineOverTcp, ARankThatNeverComesIsNamed) {
  const testing::HangWatchdog watchdog("a missing rank over TCP", std::chrono::seconds(100));
  for (const char* name : {"canonical", "tree"}) {
    Event done;
    std::atomic<int> left{2};
    const auto errors = over_tcp(3, [&](std::shared_ptr<Transport> transport) {
      const auto engine = message_engine(transport, name);
      if (transport->rank() == 1) {
        while (!done.wait_until(in_time(std::chrono::milliseconds(10)))) {
          engine->tend([] { return std::string("computes"); });
        }
        return;
      }
      TypedBytes data(DType::kFloat32, 100);
      try {
        all_reduce_call(data).run(*engine, 0, in_time(std::chrono::milliseconds(100)));
      } catch (const Error&) {
        if (--left == 0) done.set();
        throw;
      }
    });
    for (const std::size_t rank : {0, 2}) {
      ASSERT_TRUE(errors[rank]);
      EXPECT_EQ(errors[rank]->code(), ErrorCode::kDeadlineExceeded);
      EXPECT_NE(errors[rank]->message().find("; rank 1 did not come"), std::string::npos)
          << errors[rank]->what();
    }
  }
}

TEST(MessageEngineOverTcp, ARankThatIsGoneEndsTheCallsOfTheOthers) {
  const testing::HangWatchdog watchdog("a rank that is gone over TCP", std::chrono::seconds(100));
  for (const std::string& name : message_algorithms()) {
    const auto errors = over_tcp(4, [&](std::shared_ptr<Transport> transport) {
      if (transport->rank() == 2) return;
      const auto engine = message_engine(transport, name);
      TypedBytes data(DType::kFloat32, 100);
      all_reduce_call(data).run(*engine, 0);
    });
    for (const std::size_t rank : {0, 1, 3}) {
      ASSERT_TRUE(errors[rank]) << name;
      const ErrorCode code = errors[rank]->code();
      EXPECT_TRUE(code == ErrorCode::kUnavailable || code == ErrorCode::kAborted)
          << errors[rank]->what();
    }
  }
}

}  // namespace message_engine_tcp_test
}  // namespace tutti
