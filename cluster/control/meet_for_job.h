// A control plane for tasks that know no addresses: the first one hosts it and tells the others.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "tutti/cluster/control/join_job.h"
#include "tutti/cross_device_ops/communicator.h"

namespace tutti {

namespace internal {
/// Equal for processes that reach each other at 127.0.0.1.
std::int64_t number_of_this_machine();
/// As if this task were on that machine.
ControlPlane meet_for_job(const std::vector<MemberTask>& tasks, Communicator& communicator,
                          const JoinOptions& options, std::int64_t machine);
}  // namespace internal

/// join_job() for tasks that can talk to each other before they know where the others are, as the
/// ranks of an MPI job can; task i is rank i of `communicator`. Task 0 hosts the server: where its
/// TUTTI_CONTROL says, which is then an address of its machine; without that at a free port of the
/// loopback interface, if all tasks are on one machine. It tells the others where, and a new secret
/// unless the environment or `options` give one. Called by all; returns when all have joined.
/// Across machines without TUTTI_CONTROL nobody hosts it: task 0 says so in a line, and `client` is
/// nullptr on all. Throws as join_job(); kUnavailable on all tasks, naming task 0 and its reason,
/// when it cannot host.
ControlPlane meet_for_job(const std::vector<MemberTask>& tasks, Communicator& communicator,
                          const JoinOptions& options = {});

}  // namespace tutti
