// Estimators: functions that are trained, evaluated and asked from and to checkpoints.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/model/estimator/estimator.h"  // model functions, RunConfig, hooks
