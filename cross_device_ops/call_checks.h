// Checks of a call's arguments: types, counts, roots, memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

#include "cross_device_ops/buffer_call.h"

namespace tutti::internal {

/// Throws kInvalidArgument, with a message that begins with `who`, unless all values have the same
/// shape and type.
void require_equal(std::string_view who, std::span<const Tensor> values);

/// Performs all checks that member `member` of a group of `size` members can perform by itself:
/// types, memory, root, reduction (MEAN is permitted) and counts. An output may overlap its input
/// only if both are the same memory. Throws kInvalidArgument.
void check_call(const CollectiveCall& call, std::size_t member, std::size_t size);

/// Calls check_call() for each member and checks the buffers together: equal counts, types and
/// devices, and no output that overlaps another member's buffer. `in_place`: the outputs are the
/// inputs. Throws kInvalidArgument; `who` is the operation's name.
void check_buffers(std::string_view who, const BufferCall& call, bool in_place);

}  // namespace tutti::internal
