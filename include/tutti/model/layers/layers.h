// All layers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/model/layers/activations.h"
#include "tutti/model/layers/convolution.h"
#include "tutti/model/layers/core_layers.h"
#include "tutti/model/layers/dropout.h"
#include "tutti/model/layers/key_value_cache.h"
#include "tutti/model/layers/layer.h"
#include "tutti/model/layers/layer_description.h"
#include "tutti/model/layers/layer_of.h"
#include "tutti/model/layers/merging.h"
#include "tutti/model/layers/multi_head_attention.h"
#include "tutti/model/layers/normalizations.h"
#include "tutti/model/layers/pooling.h"
#include "tutti/model/layers/preprocessing.h"
#include "tutti/model/layers/recurrent.h"
#include "tutti/model/layers/regularization.h"
#include "tutti/model/layers/reshaping.h"
#include "tutti/model/layers/transformer.h"
