// Models split across several devices.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/model/parallel/pipeline.h"               // models split by layer across devices
#include "tutti/strategy/reduction/average_gradients.h"  // mean of the towers' gradients
