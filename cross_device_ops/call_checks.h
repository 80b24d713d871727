// Checks of a call's arguments: types, counts, roots, memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

#include "cross_device_ops/buffer_call.h"

namespace tutti::internal {

/// Throws kInvalidArgument, `who` first in the message, unless all have one shape and type.
void require_equal(std::string_view who, std::span<const Tensor> values);

/// Checks what one member of a group of `size` can see of a call of its own, which may have MEAN:
/// types, memory, root, reduction, counts, and that an output overlaps its input in place alone.
/// Throws kInvalidArgument.
void check_call(const CollectiveCall& call, std::size_t member, std::size_t size);

/// check_call() for each member, and what their buffers must have in common: counts, types,
/// devices, and no output overlaps another member's buffer. `in_place`: the outputs are the inputs.
/// Throws kInvalidArgument; `who` is the operation's name.
void check_buffers(std::string_view who, const BufferCall& call, bool in_place);

}  // namespace tutti::internal
