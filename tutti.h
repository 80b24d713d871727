// Everything that a training program needs: the public API at a glance.
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What there is to compute with.
#include "tutti/core/error.h"         // Error: the one exception type
#include "tutti/core/random.h"        // set_random_seed
#include "tutti/tensor/device.h"      // Device, parse_devices
#include "tutti/tensor/tensor.h"      // Tensor
#include "tutti/tensor/tensor_ops.h"  // matmul, conv2d, softmax, ...

// What is trained, and how.
#include "tutti/autograd/gradient_tape.h"            // GradientTape
#include "tutti/autograd/variable.h"                 // Variable
#include "tutti/optimizer/adam.h"                    // Adam
#include "tutti/optimizer/clipping.h"                // clip_by_global_norm, ...
#include "tutti/optimizer/learning_rate_schedule.h"  // ExponentialDecay, ...
#include "tutti/optimizer/optimizer.h"               // Optimizer: minimize, apply_gradients
#include "tutti/optimizer/sgd.h"                     // Sgd

// Data in, checkpoints out.
#include "tutti/checkpoint/checkpoint.h"  // Checkpoint: weights, slots, step, data position
#include "tutti/data/dataset.h"           // Dataset: shuffle, batch, map, prefetch, ...
#include "tutti/data/readers.h"           // load_mnist, read_cifar10, ...

// One loop, any number of replicas.
#include "tutti/strategy/central_storage_strategy.h"  // CentralStorageStrategy
#include "tutti/strategy/distributed_dataset.h"       // DistributedDataset
#include "tutti/strategy/mirrored_strategy.h"         // MirroredStrategy
#include "tutti/strategy/one_device_strategy.h"       // OneDeviceStrategy
#include "tutti/strategy/replica_context.h"           // get_replica_context, ReplicaContext

// Layers, losses, metrics, and Keras's compile, fit and evaluate.
#include "tutti/model/layers/average_loss.h"  // compute_average_loss
#include "tutti/model/layers/layers.h"        // Dense, Conv2D, Dropout, ...
#include "tutti/model/layers/losses.h"        // losses::mean_squared_error, ...
#include "tutti/model/layers/metrics.h"       // SparseCategoricalAccuracy, ...
#include "tutti/model/model.h"                // Model
#include "tutti/model/sequential.h"           // Sequential
