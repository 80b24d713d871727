// TPUs, and whatever else XLA computes on.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/strategy/tpu_strategy.h"   // steps as programs of XLA
#include "tutti/tensor/xla/xla_devices.h"  // which devices there are
