// Ports of this machine that nobody uses.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace tutti::launch {

/// `count` different TCP ports that are free on 127.0.0.1 now. They lie below those that the kernel
/// hands to outgoing connections, so that no connection takes one before the program binds it; they
/// are chosen at random, so that two jobs that start together do not meet. Throws
/// kResourceExhausted when there are not so many.
std::vector<int> free_ports(int count);

}  // namespace tutti::launch
