// Gloo context of the processes of a tutti group.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gloo/context.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tutti/cross_device_ops/plugin_abi.h"

namespace gloo_ops {

// Exception with a message and an error code of plugin_abi.h.
struct Failure : std::runtime_error {
  Failure(std::int32_t code, const std::string& text) : std::runtime_error(text), code(code) {}
  std::int32_t code;
};

// Connects one Gloo rank per process over TCP. Addresses are exchanged through the group's store.
// Listens on the address in the environment variable GLOO_OPS_ADDRESS, or on 127.0.0.1.
std::shared_ptr<gloo::Context> connect(const tutti_group_v1& group, int process, int num_processes,
                                       std::chrono::milliseconds timeout);

}  // namespace gloo_ops
