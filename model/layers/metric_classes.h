// All metrics.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/model/layers/auc.h"
#include "tutti/model/layers/confusion_metrics.h"
#include "tutti/model/layers/metric_spec.h"
#include "tutti/model/layers/metrics.h"
