// Messages between threads of one process: one copy, directly from the sender's memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "tutti/cross_device_ops/transport.h"

namespace tutti {

/// Returns the transports of `size` ranks, by rank; each is used by the thread (or threads) of its
/// rank. Nothing is buffered: the second of sender and receiver copies, and a send ends when the
/// receiver has its bytes. A rank whose transport was destroyed is kUnavailable. Without
/// `shares_memory` there is no host_memory(), so that all calls use messages. Throws
/// kInvalidArgument for size < 1.
std::vector<std::shared_ptr<Transport>> in_process_transports(int size, bool shares_memory = true);

}  // namespace tutti
