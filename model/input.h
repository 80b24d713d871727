// The shape of one example: what a model starts from.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/tensor/shape.h"

namespace tutti {

/// `Input{{28, 28, 1}}`: one example has this shape; the batch is not part of it.
struct Input {
  Shape shape;
};

}  // namespace tutti
