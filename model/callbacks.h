// All callbacks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/model/backup_and_restore.h"
#include "tutti/model/callback.h"
#include "tutti/model/csv_logger.h"
#include "tutti/model/early_stopping.h"
#include "tutti/model/lambda_callback.h"
#include "tutti/model/learning_rate_scheduler.h"
#include "tutti/model/model_checkpoint.h"
#include "tutti/model/reduce_lr_on_plateau.h"
#include "tutti/model/tensor_board.h"
#include "tutti/model/terminate_on_nan.h"
