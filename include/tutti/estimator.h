// Estimators: model functions that train, evaluate, predict and checkpoint.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/model/estimator/estimator.h"  // model functions, RunConfig, hooks
