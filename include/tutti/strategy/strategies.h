// Includes the strategies that train in one process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/strategy/central_storage_strategy.h"
#include "tutti/strategy/mirrored_strategy.h"
#include "tutti/strategy/one_device_strategy.h"
