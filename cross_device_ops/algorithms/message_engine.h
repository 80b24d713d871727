// Collectives over messages: an algorithm by name for the ranks of a transport.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cross_device_ops/collective_engine.h"

namespace tutti::internal {

/// In what pieces calls are made where messages go between processes: with what stands before and
/// behind it, a message of two packets of a loopback device. Measured with 2 ranks at 4 MiB: 1,100
/// us; 128 KiB 1,190, 64 KiB 1,250, 256 KiB 1,310.
inline constexpr std::size_t kNetworkSegmentBytes = 2 * 65280;

/// The names that message_engine() knows: the algorithms, and "auto".
std::vector<std::string> message_algorithms();

/// The rank of `transport`. Throws kNotFound listing the names.
///
/// Every message of a call is received within it. Each rank sends its header (208 bytes) to its
/// right neighbour, with its first message where that goes there, and returns only when it knows
/// that all headers are equal; docs/algorithms.md says what that costs. A rank that fails
/// (mismatch, deadline, a peer that is gone) aborts the transport, so that the others fail with the
/// same reason, in all groups. At its deadline a rank asks for up to 300 ms where the others are,
/// to name those that did not come.
std::unique_ptr<CollectiveEngine> message_engine(std::shared_ptr<Transport> transport,
                                                 std::string_view algorithm);

}  // namespace tutti::internal
