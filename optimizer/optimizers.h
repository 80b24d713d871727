// All optimizers, and learning rates over time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/optimizer/cosine_decay.h"
#include "tutti/optimizer/exponential_moving_average.h"
#include "tutti/optimizer/learning_rate_spec.h"
#include "tutti/optimizer/optimizer_spec.h"
#include "tutti/optimizer/polynomial_decay.h"
#include "tutti/optimizer/warm_up.h"
