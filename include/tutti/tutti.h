// The main header: training on the devices of one process or with several workers.
// SPDX-License-Identifier: Apache-2.0
//
// Other subjects have their own headers: cluster.h, communicator.h, estimator.h, gpu.h, horovod.h,
// libtorch.h, mesh.h, model_parallel.h, parameter_server.h, readers.h, tpu.h.
#pragma once

#include "tutti/autograd/embedding_lookup.h"        // lookups of rows, single or combined
#include "tutti/autograd/gradient_tape.h"           // automatic differentiation
#include "tutti/autograd/variable_store.h"          // variables shared by name
#include "tutti/checkpoint/checkpoint_manager.h"    // saving and restoring
#include "tutti/cluster/resolver_registry.h"        // the cluster of this process
#include "tutti/data/dataset.h"                     // datasets
#include "tutti/model/callbacks.h"                  // early stopping, checkpoints, logs
#include "tutti/model/functional.h"                 // graphs of layers
#include "tutti/model/layers/layers.h"              // Dense, Conv2D, ...
#include "tutti/model/layers/losses.h"              // losses; compute_average_loss
#include "tutti/model/sequential.h"                 // models: compile, fit; losses, metrics
#include "tutti/model/training/training_session.h"  // sessions for custom training loops
#include "tutti/optimizer/optimizers.h"             // SGD, Adam, ...; learning-rate schedules
#include "tutti/strategy/captured_step.h"           // steps replayed on GPUs
#include "tutti/strategy/factory/make_strategy.h"   // a strategy by its name
#include "tutti/strategy/fully_sharded_strategy.h"  // sharded variables
#include "tutti/strategy/multi_worker_mirrored_strategy.h"  // several processes
#include "tutti/strategy/strategies.h"                      // the devices of one process
#include "tutti/tensor/device_scope.h"                      // device for tensors and operations
#include "tutti/tensor/tensor_ops.h"                        // operations on tensors
