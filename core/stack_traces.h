// Where each thread of the process stands.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace tutti {

/// Name and stack of each thread of this process, the calling one too, a line per frame
/// ("program(function+0x1f) [0x...]": functions of programs linked without -rdynamic have no
/// names). Threads are asked one after the other, by a signal (SIGRTMIN + 3) whose handler is
/// installed for good; one that does not answer within a second is named without a stack. Threads:
/// any; calls take turns.
std::string stacks_of_all_threads();

}  // namespace tutti
