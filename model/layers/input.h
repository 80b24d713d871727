// The shape of one example: what a model starts from.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/tensor/shape.h"

namespace tutti {

/// `Input{{28, 28, 1}}`: one example has this shape; the batch is not part of it. The start of a
/// Sequential, or of a graph: `SymbolicTensor x = Input{{28, 28, 1}};`.
struct Input {
  Shape shape;
  std::string name = "";
};

}  // namespace tutti
