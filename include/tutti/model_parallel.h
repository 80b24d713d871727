// Models split over several devices.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/model/parallel/pipeline.h"               // models split over devices by layers
#include "tutti/strategy/reduction/average_gradients.h"  // mean of the towers' gradients
