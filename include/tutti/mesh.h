// Computation sharded over a mesh of devices.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/strategy/mesh/mesh_strategy.h"
