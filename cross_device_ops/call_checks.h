// Checks of a call's arguments: types, counts, roots, memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

#include "cross_device_ops/buffer_call.h"

namespace tutti::internal {

/// Throws kInvalidArgument, with `who` first in the message, unless all values have the same shape
/// and type.
void require_equal(std::string_view who, std::span<const Tensor> values);

/// Makes all checks that one of the `size` members of a group can make on its own call, which may
/// use MEAN: types, memory, root, reduction, counts, and that an output overlaps its input only if
/// both are the same memory. Throws kInvalidArgument.
void check_call(const CollectiveCall& call, std::size_t member, std::size_t size);

/// Calls check_call() for each member and checks the buffers together: equal counts, types and
/// devices, and no output that overlaps another member's buffer. `in_place`: the outputs are the
/// inputs. Throws kInvalidArgument; `who` is the operation's name.
void check_buffers(std::string_view who, const BufferCall& call, bool in_place);

}  // namespace tutti::internal
