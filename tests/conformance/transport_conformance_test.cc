// The transports of the library against the suite of every transport.
// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/transport_suite.h"
#include "tutti/cluster/tcp/tcp_transport.h"
#include "tutti/cross_device_ops/in_process/in_process_store.h"
#include "tutti/cross_device_ops/in_process/in_process_transport.h"

namespace tutti::transport_suite {

struct InProcessGroups {
  static Group make(int size) { return in_process_transports(size); }
};
INSTANTIATE_TYPED_TEST_SUITE_P(InProcess, TransportSuite, InProcessGroups);

struct TcpGroups {
  static Group make(int size) {
    InProcessStore store;
    Group group(static_cast<std::size_t>(size));
    run_threads(size, [&](int rank) {
      group[static_cast<std::size_t>(rank)] = tcp_transport(rank, size, store);
    });
    return group;
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Tcp, TransportSuite, TcpGroups);

}  // namespace tutti::transport_suite
