// Models split over several devices.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/model/parallel/hybrid_dense.h"    // sharded dense layers above replicated ones
#include "tutti/model/parallel/parallel_dense.h"  // dense layers sharded over devices
#include "tutti/model/parallel/pipeline.h"        // models split over devices by layers
#include "tutti/strategy/reduction/average_gradients.h"  // the mean of towers' gradients
