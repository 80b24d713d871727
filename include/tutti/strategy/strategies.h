// Includes the strategies of one process: variables mirrored on its devices, or on one device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/strategy/central_storage_strategy.h"
#include "tutti/strategy/mirrored_strategy.h"
#include "tutti/strategy/one_device_strategy.h"
