// Runs a sample of the conformance kit (./test --full: all cases) with every registered operation,
// and with ranks that use shared memory, TCP or both. Also runs the transport suite.
// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <tuple>

#include "cluster/net/handshake.h"
#include "cross_device_ops/in_process/in_process_transport.h"
#include "gtest/gtest.h"
#include "tests/conformance/transport_suite.h"
#include "tests/support/sanitizers.h"
#include "tutti/cluster/connect_ranks.h"
#include "tutti/cross_device_ops/key_value_store.h"
#include "tutti/cross_device_ops/registry.h"
#include "tutti/testing/cross_device_ops/report.h"

namespace tutti::conformance::conformance_test {
using Parameter = std::tuple<std::string, GroupShape>;

/// Returns the operations and group shapes to test: one operation with kThreads, and every
/// operation with kLocal and with kSpread.
std::vector<Parameter> operations_and_shapes() {
  std::vector<Parameter> all{{"canonical", GroupShape::kThreads}};
  for (const std::string& name : registered_cross_device_ops(DeviceType::kCpu)) {
    all.emplace_back(name, GroupShape::kLocal);
    all.emplace_back(name, GroupShape::kSpread);
  }
  return all;
}

class RegisteredOperation : public ::testing::TestWithParam<Parameter> {};

INSTANTIATE_TEST_SUITE_P(All, RegisteredOperation, ::testing::ValuesIn(operations_and_shapes()),
                         [](const auto& info) {
                           return concat(std::get<0>(info.param), "_",
                                         to_string(std::get<1>(info.param)));
                         });

TEST_P(RegisteredOperation, PassesSampledCases) {
  const auto& [name, shape] = GetParam();
  const Report report = run(Plan{.shapes = {shape}, .sample = 80}, Subject(name));
  EXPECT_EQ(report.count(Verdict::kFailed) + report.count(Verdict::kNotRun), 0u)
      << report.table("tutti conform " + name);
  // Every operation must support kLocal, a group whose replicas share one CrossDeviceOps.
  EXPECT_TRUE(report.passed() || shape != GroupShape::kLocal);
  if (!report.passed()) GTEST_SKIP() << report.results.front().message;
}

// Ranks connected in the same way as ranks in separate processes.

using Way = ConnectOptions::Way;

// Sixteen ranks in one process map 256 segments. ThreadSanitizer leaves 1.5 TiB for all mappings.
constexpr std::size_t kPlaceBytes = std::size_t{1} << (testing::kIsSanitized ? 30 : 34);

/// Returns a factory for ranks. Ranks are threads here, but each rank has separate mappings, like a
/// process.
RankFactory connected_ranks(const std::string& algorithm, Way way, int world, Duration timeout) {
  const auto store = std::make_shared<InProcessStore>();
  return [=](int rank) {
    const ConnectedRanks connected =
        connect_ranks(rank, world, *store, {.way = way, .place_bytes = kPlaceBytes});
    return make_communicator(connected.transport,
                             CommunicatorOptions{.algorithm = algorithm, .timeout = timeout});
  };
}

struct Connection {
  const char* name;
  const char* algorithm;
  Way way;
};

class CommunicatorAlgorithm : public ::testing::TestWithParam<Connection> {};

INSTANTIATE_TEST_SUITE_P(All, CommunicatorAlgorithm,
                         ::testing::Values(Connection{"windows", "canonical", Way::kSharedMemory},
                                           Connection{"leaders", "hierarchical_copy",
                                                      Way::kSharedMemory},
                                           Connection{"tcp", "canonical", Way::kTcp}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(CommunicatorAlgorithm, PassesSampledCases) {
  Subject subject;
  subject.name = GetParam().name;
  subject.spread = [](int world, Duration timeout) {
    return connected_ranks(GetParam().algorithm, GetParam().way, world, timeout);
  };
  const Report report = run({.shapes = {GroupShape::kSpread}, .sample = 70}, subject);
  EXPECT_TRUE(report.passed() && report.count(Verdict::kNotRun) == 0) << report.table("kit");
}

}  // namespace tutti::conformance::conformance_test

namespace tutti::transport_suite {

struct InProcessGroups {
  static Group make(int size) { return in_process_transports(size); }
};
INSTANTIATE_TYPED_TEST_SUITE_P(InProcess, TransportSuite, InProcessGroups);

struct TcpGroups {
  static Group make(int size) { return connected_ranks(size, {.way = ConnectOptions::Way::kTcp}); }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Tcp, TransportSuite, TcpGroups);

struct ShmGroups {
  static Group make(int size) {
    return connected_ranks(size, {.way = ConnectOptions::Way::kSharedMemory});
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Shm, TransportSuite, ShmGroups);

// Store in which even ranks appear to be on one machine, and odd ranks on another.
class TwoMachines final : public KeyValueStore {
 public:
  explicit TwoMachines(KeyValueStore& store, int rank) : store_(store), rank_(rank) {}
  void set(std::string_view key, std::string_view value) override {
    store_.set(key, moved(value, rank_));
  }
  std::optional<std::string> get(std::string_view key) override {
    const auto value = store_.get(key);
    return value ? std::optional(seen(*value)) : std::nullopt;
  }
  std::string wait(std::string_view key, TimePoint deadline) override {
    return seen(store_.wait(key, deadline));
  }

 private:
  static std::string side(int rank) { return rank % 2 == 0 ? "even-" : "odd-"; }
  static std::string moved(std::string_view value, int rank) {
    internal::Announcement announced = internal::parse_announcement(std::string(value)).value();
    announced.machine = side(rank) + announced.machine;
    return internal::to_text(announced);
  }
  std::string seen(const std::string& value) const {
    internal::Announcement announced = internal::parse_announcement(value).value();
    if (announced.machine.starts_with(side(rank_))) {
      announced.machine.erase(0, side(rank_).size());
    }
    return internal::to_text(announced);
  }
  KeyValueStore& store_;
  const int rank_;
};

struct RoutedGroups {
  static Group make(int size) {
    InProcessStore store;
    Group group(static_cast<std::size_t>(size));
    require_on_ranks(size, [&](int rank) {
      TwoMachines own_view(store, rank);
      const ConnectedRanks connected = connect_ranks(rank, size, own_view);
      EXPECT_EQ(connected.transport->name(), "routed");
      if (size > 2) {
        EXPECT_NE(connected.line.find("tcp 127.0.0.1:"), std::string::npos) << connected.line;
      }
      if (size > 2 && rank != 1) {
        EXPECT_NE(connected.line.find("shared memory (pid"), std::string::npos) << connected.line;
      }
      group[static_cast<std::size_t>(rank)] = connected.transport;
    });
    return group;
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Routed, TransportSuite, RoutedGroups);

}  // namespace tutti::transport_suite
