// Computation sharded over a mesh of devices.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/strategy/mesh/local_map.h"      // functions on local shards
#include "tutti/strategy/mesh/mesh_strategy.h"  // the strategy and its layouts
