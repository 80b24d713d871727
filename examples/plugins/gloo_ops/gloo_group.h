// The processes of a tutti group as a Gloo context.
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

// What ends a call: a code of plugin_abi.h and a text.
struct Failure : std::runtime_error {
  Failure(std::int32_t code, const std::string& text) : std::runtime_error(text), code(code) {}
  std::int32_t code;
};

// One Gloo rank per process, connected over TCP; the addresses travel through the group's store.
// Listens on the address that the environment variable GLOO_OPS_ADDRESS names, or 127.0.0.1.
std::shared_ptr<gloo::Context> connect(const tutti_group_v1& group, int process, int num_processes,
                                       std::chrono::milliseconds timeout);

}  // namespace gloo_ops
