// The GPUs of this process: placement, memory, captured steps and copies between devices.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/strategy/captured_step.h"            // steps replayed on GPUs
#include "tutti/strategy/variables/memory_report.h"  // memory of variables per device
#include "tutti/tensor/device_memory.h"              // memory use and limit of a device
#include "tutti/tensor/device_scope.h"               // scopes that choose the device
#include "tutti/tensor/dispatch.h"                   // copies between devices
#include "tutti/tensor/gpu/gpus.h"                   // the list of GPUs
