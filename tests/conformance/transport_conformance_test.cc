// Runs the transport suite on the library's transports.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/net/handshake.h"
#include "cross_device_ops/in_process/in_process_transport.h"
#include "tests/conformance/transport_suite.h"
#include "tests/support/transports.h"
#include "tutti/cluster/connect_ranks.h"
#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti::transport_suite {

struct InProcessGroups {
  static Group make(int size) { return in_process_transports(size); }
};
INSTANTIATE_TYPED_TEST_SUITE_P(InProcess, TransportSuite, InProcessGroups);

struct TcpGroups {
  static Group make(int size) {
    InProcessStore store;
    Group group(static_cast<std::size_t>(size));
    require_on_ranks(size, [&](int rank) {
      group[static_cast<std::size_t>(rank)] = connect_by_tcp(rank, size, store);
    });
    return group;
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Tcp, TransportSuite, TcpGroups);

struct ShmGroups {
  static Group make(int size) {
    InProcessStore store;
    Group group(static_cast<std::size_t>(size));
    require_on_ranks(size, [&](int rank) {
      group[static_cast<std::size_t>(rank)] = connect_by_memory(rank, size, store);
    });
    return group;
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Shm, TransportSuite, ShmGroups);

// Announces even ranks as being on one machine, and odd ranks on another.
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
