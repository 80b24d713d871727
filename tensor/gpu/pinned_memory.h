// Host memory that GPUs copy from and to without anybody waiting.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "tutti/tensor/buffer.h"

namespace tutti {

/// A buffer of pinned host memory with undefined content, from a cache; where the system has none
/// left, of other host memory, from and to which copies keep the thread that asks for them (said
/// once). Freed, it may be handed out again at once: whoever lets a GPU copy waits for that first.
/// Any thread.
BufferRef allocate_pinned(std::size_t bytes);

}  // namespace tutti
