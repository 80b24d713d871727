// What the options of a strategy of one process mean.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "tutti/strategy/strategy_extended.h"

namespace tutti::internal {

/// The device of each replica: consecutive replicas share a device. Throws kInvalidArgument naming
/// `who` for devices that are not there, or stand twice, and too few replicas.
std::vector<Device> replica_devices_of(std::string_view who, const LocalStrategyOptions& options);

/// For the strategies that compute on XLA's devices: those that the options name, of each replica;
/// empty: they name none. Then the options are those of the host, for which a replica on xla:i is
/// on cpu:i. Throws kInvalidArgument or kUnimplemented naming `who` and the option that a step
/// which XLA computes has no use for.
std::vector<Device> take_xla_devices(std::string_view who, LocalStrategyOptions& options);

/// Throws kInvalidArgument naming `who` unless replica_weights is empty or has one positive number
/// for each of `num_replicas` (of all workers).
void check_weights(std::string_view who, const LocalStrategyOptions& options, int num_replicas);

/// By the rule of LocalStrategyOptions::deterministic.
std::unique_ptr<CrossDeviceOps> build_ops(std::string_view who, const LocalStrategyOptions& options,
                                          const std::vector<Device>& replica_devices);

/// Returns `options`. Logs a warning once if a launcher started several copies of this program,
/// none of which joins the others under a strategy of one process.
LocalStrategyOptions checked_for_workers(LocalStrategyOptions options);

}  // namespace tutti::internal
