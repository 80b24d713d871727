// TPUs and other devices that XLA supports.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/strategy/tpu_strategy.h"   // steps as XLA programs
#include "tutti/tensor/xla/xla_devices.h"  // the list of XLA devices
