// All callbacks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/model/callback.h"
#include "tutti/model/early_stopping.h"
#include "tutti/model/learning_rates.h"
#include "tutti/model/log_files.h"
#include "tutti/model/model_checkpoint.h"
