// Variables on parameter servers, and the coordinator of the steps that change them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/strategy/parameter_server/client/closure_context.h"  // context of a closure
#include "tutti/strategy/parameter_server/coordinator/cluster_coordinator.h"  // schedules steps
#include "tutti/strategy/parameter_server/parameter_server_strategy.h"  // variables on servers
#include "tutti/strategy/parameter_server/session/server.h"   // a task that serves sessions
#include "tutti/strategy/parameter_server/session/session.h"  // operations on other tasks
#include "tutti/strategy/variables/sharded_variable.h"        // one variable in several shards
