// Compile options of XLA as bytes of their protocol buffer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti::internal {

/// xla.CompileOptionsProto of a program whose replica r runs on the device of number ids[r], which
/// are at least one: a plugin ends the process where there is none. `on_cpu`: NaN stays NaN in
/// maxima.
std::string compile_options(const std::vector<std::int64_t>& ids, bool on_cpu);

}  // namespace tutti::internal
