// All layers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/model/layers/activation_layers.h"
#include "tutti/model/layers/batch_normalization.h"
#include "tutti/model/layers/conv2d.h"
#include "tutti/model/layers/dense.h"
#include "tutti/model/layers/dropout.h"
#include "tutti/model/layers/dtype_policy.h"
#include "tutti/model/layers/embedding.h"
#include "tutti/model/layers/layer.h"
#include "tutti/model/layers/local_response_normalization.h"
#include "tutti/model/layers/pooling.h"
#include "tutti/model/layers/rescaling.h"
#include "tutti/model/layers/reshaping.h"
