// Everything a program needs: one include per subject.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/autograd/embedding_lookup_sparse.h"      // rows of a table, alone or combined
#include "tutti/autograd/gradient_tape.h"                // gradients of what was computed
#include "tutti/autograd/variable.h"                     // named, mutable tensors
#include "tutti/autograd/variable_store.h"               // variables made once, shared by name
#include "tutti/checkpoint/checkpoint_manager.h"         // saving and restoring
#include "tutti/cluster/connect_ranks.h"                 // the best way between processes
#include "tutti/cluster/file_key_value_store.h"          // how processes find each other
#include "tutti/cluster/message_key_value_store.h"       // the same over a transport
#include "tutti/cluster/mpi/mpi_transport.h"             // messages between processes of an MPI job
#include "tutti/cluster/multi_worker_util.h"             // who is chief, who trains
#include "tutti/cluster/resolver_registry.h"             // who is in the cluster
#include "tutti/cluster/resolvers/static_resolver.h"     // a cluster written in the program
#include "tutti/cluster/resolvers/tf_config_resolver.h"  // a cluster as TF_CONFIG describes it
#include "tutti/cluster/tcp/tcp_transport.h"             // messages between processes
#include "tutti/core/executor.h"                         // threads
#include "tutti/core/random.h"                           // set_random_seed
#include "tutti/cross_device_ops/communicator.h"         // collectives of ranks on plain memory
#include "tutti/cross_device_ops/cross_device_ops.h"     // how values of replicas become one
#include "tutti/cross_device_ops/mpi/mpi.h"              // whether there is MPI
#include "tutti/cross_device_ops/plugin.h"               // such operations from shared libraries
#include "tutti/cross_device_ops/registry.h"             // choosing and adding such operations
#include "tutti/cross_device_ops/tensor_communication.h"  // the same on tensors
#include "tutti/data/augment.h"                           // augmentation of pictures
#include "tutti/data/csv.h"                               // CSV files
#include "tutti/data/dataset.h"                           // datasets
#include "tutti/data/example.h"                           // tf.train.Example
#include "tutti/data/fixed_length_records.h"              // files of equal records
#include "tutti/data/image.h"                             // PNG and JPEG pictures
#include "tutti/data/image_folder.h"                      // folders of pictures
#include "tutti/data/list_files.h"                        // files by pattern
#include "tutti/data/mixup.h"                             // mixup, cutmix
#include "tutti/data/npy.h"                               // numpy's .npy and .npz
#include "tutti/data/readers.h"                           // MNIST, Fashion-MNIST, CIFAR-10
#include "tutti/data/resize_image.h"                      // pictures of another size
#include "tutti/data/tar.h"                               // tar shards of samples
#include "tutti/data/tfrecord.h"                          // TFRecord files
#include "tutti/model/callbacks.h"                        // early stopping, checkpoints, logs
#include "tutti/model/functional.h"                       // graphs of layers
#include "tutti/model/layers/average_loss.h"              // compute_average_loss
#include "tutti/model/layers/layers.h"                    // Dense, Conv2D, ...
#include "tutti/model/layers/loss_classes.h"              // loss functions and objects
#include "tutti/model/layers/metric_classes.h"            // accuracy, mean, ...
#include "tutti/model/parallel/parallel_dense.h"          // layers cut over devices
#include "tutti/model/parallel/pipeline.h"                // models split over devices by layers
#include "tutti/model/sequential.h"                       // models: compile, fit, evaluate, predict
#include "tutti/optimizer/cosine_decay.h"                 // learning rates over time
#include "tutti/optimizer/exponential_moving_average.h"   // averages of variables and numbers
#include "tutti/optimizer/learning_rate_spec.h"           // schedules by name
#include "tutti/optimizer/optimizer_spec.h"               // SGD, Adam, ...
#include "tutti/optimizer/polynomial_decay.h"             // learning rates over time
#include "tutti/optimizer/warm_up.h"                      // warm-up; warm-up, stable, decay
#include "tutti/strategy/average_gradients.h"             // the mean of towers' gradients
#include "tutti/strategy/captured_step.h"                 // steps replayed on GPUs
#include "tutti/strategy/central_storage_strategy.h"      // variables on one device
#include "tutti/strategy/checkpoint_options.h"            // several workers save and restore
#include "tutti/strategy/mirrored_strategy.h"             // variables on every device
#include "tutti/strategy/multi_worker_mirrored_strategy.h"                    // several processes
#include "tutti/strategy/one_device_strategy.h"                               // a single device
#include "tutti/strategy/parameter_server/cached_reads.h"                     // reading once
#include "tutti/strategy/parameter_server/coordinator/cluster_coordinator.h"  // steps on any worker
#include "tutti/strategy/parameter_server/parameter_server_strategy.h"  // variables on servers
#include "tutti/strategy/parameter_server/session/session.h"            // steps on named tasks
#include "tutti/strategy/parameter_server/session/task_optimizer.h"     // updates on their tasks
#include "tutti/strategy/parameter_server/sharded_variable.h"           // several as one
#include "tutti/strategy/recovery.h"     // going on when a worker dies
#include "tutti/tensor/device_memory.h"  // memory per device
#include "tutti/tensor/device_scope.h"   // where things are made and run
#include "tutti/tensor/placement_log.h"  // which operation runs where
#include "tutti/tensor/tensor_ops.h"     // operations on tensors
#include "tutti/tensor/transfers.h"      // what moves between devices
