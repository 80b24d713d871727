// Includes all tensor operations.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/tensor/ops/activation_ops.h"
#include "tutti/tensor/ops/attention.h"
#include "tutti/tensor/ops/convolution_ops.h"
#include "tutti/tensor/ops/creation.h"
#include "tutti/tensor/ops/einsum.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/matmul.h"
#include "tutti/tensor/ops/normalization.h"
#include "tutti/tensor/ops/random_ops.h"
#include "tutti/tensor/ops/reduction.h"
#include "tutti/tensor/ops/shape_ops.h"
