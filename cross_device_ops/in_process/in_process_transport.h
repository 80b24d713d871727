// Messages between threads of one process: one copy, straight from the sender's memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "tutti/cross_device_ops/transport.h"

namespace tutti {

/// The transports of `size` ranks, by rank; each is used by the thread (or threads) of its rank. A
/// send ends when the receiver has its bytes: whoever comes second, sender or receiver, copies.
/// Nothing is buffered. A rank is gone (kUnavailable) when its transport was destroyed. Without
/// `shares_memory` there is no host_memory(), so that all goes by messages. Throws kInvalidArgument
/// for size < 1.
std::vector<std::shared_ptr<Transport>> in_process_transports(int size, bool shares_memory = true);

}  // namespace tutti
