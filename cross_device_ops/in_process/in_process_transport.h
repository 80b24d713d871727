// Messages between threads of one process: one copy, directly from the sender's memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "tutti/cross_device_ops/transport.h"

namespace tutti {

/// Returns the transports of `size` ranks, in rank order. Each transport is used only by its rank's
/// threads. Messages are not buffered: the bytes are copied by whichever side, sender or receiver,
/// calls later, and a send ends when the receiver has them. Calls that involve a rank whose
/// transport was destroyed throw kUnavailable. If `shares_memory` is false, there is no
/// host_memory(), so all calls use messages. Throws kInvalidArgument for size < 1.
std::vector<std::shared_ptr<Transport>> in_process_transports(int size, bool shares_memory = true);

}  // namespace tutti
