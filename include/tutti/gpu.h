// The GPUs of this process, and what devices hold, do and exchange.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/strategy/captured_step.h"            // steps replayed on GPUs
#include "tutti/strategy/variables/memory_report.h"  // bytes of variables by device
#include "tutti/tensor/device_memory.h"              // memory per device
#include "tutti/tensor/device_scope.h"               // which operation runs where
#include "tutti/tensor/dispatch.h"                   // what moves between devices
#include "tutti/tensor/gpu/gpus.h"                   // which GPUs there are
