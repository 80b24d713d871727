// The transports of the library against the suite of every transport.
// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/transport_suite.h"
#include "tutti/cross_device_ops/in_process/in_process_transport.h"

namespace tutti::transport_suite {

struct InProcessGroups {
  static Group make(int size) { return in_process_transports(size); }
};
INSTANTIATE_TYPED_TEST_SUITE_P(InProcess, TransportSuite, InProcessGroups);

}  // namespace tutti::transport_suite
