// How input reaches replicas: what a user asks for, what a strategy says about its replicas, and
// how batches are cut.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/tensor/device.h"

namespace tutti {

/// Which rows of a global batch a replica gets when several workers train.
enum class ShardingRule {
  /// All workers read the same order and cut each global batch for all replicas (replica_rows()):
  /// the batches, and so the bits, of one process with as many replicas.
  kCanonical,
  /// tf's: each worker reads its part of the dataset (AutoShardPolicy) and cuts batches into pieces
  /// by batch_sizes_for_worker(), or rebatch_evenly() when sharded by DATA. A single worker reads
  /// everything and cuts it so: 10 rows for 3 replicas are 4, 3, 3, by DATA 4, 4, 2.
  kTensorFlow
};

/// How a dataset is read, cut and handed out. tf.distribute.InputOptions.
struct InputOptions {
  /// Global batches read and cut ahead by a thread of their own; 0: on the caller's thread. (tf's
  /// experimental_per_replica_buffer_size counts those of a replica.)
  int prefetch = 2;
  /// Both are without effect for datasets made by function.
  ShardingRule sharding_rule = ShardingRule::kCanonical;
  /// Naming a policy chooses kTensorFlow, whose policy is otherwise AUTO.
  std::optional<AutoShardPolicy> auto_shard_policy = std::nullopt;
  /// Whether each replica's slice is put on its device when it is handed out. False: it stays in
  /// the host's memory, and operations of the step move what they use. tf's
  /// experimental_fetch_to_device.
  bool fetch_to_device = true;
  /// True is refused with kUnimplemented: datasets are read on the host. tf's
  /// experimental_place_dataset_on_device.
  bool place_dataset_on_device = false;
};

/// How elements of a dataset become batches of replicas. kSplit: each element is a global batch,
/// which is cut. kWhole: consecutive elements go to consecutive replicas (tf's datasets made by
/// function).
enum class InputCut { kSplit, kWhole };

/// What a worker without rows left says; see InputPlan::rows_of_workers.
inline constexpr std::int64_t kNoMoreRows = -1;

/// What a strategy says about its replicas.
struct InputPlan {
  std::vector<Device> replica_devices = {};  // of this worker
  std::vector<double> weights = {};          // one per replica of all workers; empty: equal shares
  InputCut cut = InputCut::kSplit;
  InputOptions options = {};

  int num_replicas_in_sync = 0;  // of all workers; 0: replica_devices are all
  int first_replica = 0;         // of this worker among them
  int num_workers = 1;
  int worker = 0;
  /// Tells all workers how many rows this one has in the next step (kNoMoreRows at its end) and
  /// returns what each of them told, in worker order; blocks until all have. Called by begin() and
  /// ++ on the caller's thread, once per step, also in the step that none has, where workers read
  /// parts of their own: by tf's rule, and datasets made by function. A worker whose part has ended
  /// gets empty batches until no worker has rows. Needed there with several workers.
  std::function<std::vector<std::int64_t>(std::int64_t rows)> rows_of_workers = {};
  /// Called with each global batch that this worker cuts its rows out of, and that all workers must
  /// read alike; `is_first`: of a pass over the dataset.
  std::function<void(const Element& batch, bool is_first)> note_global_batch = {};
};

/// tf.distribute.InputContext.
struct InputContext {
  int num_input_pipelines = 1;
  int input_pipeline_id = 0;
  int num_replicas_in_sync = 1;

  /// global_batch_size / num_replicas_in_sync; throws kInvalidArgument naming both when it does not
  /// divide.
  std::int64_t get_per_replica_batch_size(std::int64_t global_batch_size) const;
  /// "input pipeline id 1, total: 3".
  std::string to_string() const;
};

/// tf.distribute.experimental.ValueContext.
struct ValueContext {
  int replica_id_in_sync_group = 0;
  int num_replicas_in_sync = 1;
};

/// Row counts of the replicas for a batch of `rows` rows: ceil(rows / V) each while they last, so
/// that the last replicas may get fewer or none, of every batch, full or not: the canonical rule.
/// tf.distribute.MirroredStrategy does so with datasets that do not begin at files.
std::vector<std::int64_t> replica_rows(std::int64_t rows, int num_replicas);

/// The same for explicit shares: sizes proportional to `weights` by largest remainder (ties: lower
/// replica), for any `rows`.
std::vector<std::int64_t> weighted_replica_rows(std::int64_t rows, std::span<const double> weights);

/// tf's batch_sizes: num_workers * replicas_per_worker sizes that sum to the global batch and
/// differ by at most 1; for `worker` rotated left by worker * replicas_per_worker, so that each
/// step's sizes sum to the global batch over the workers.
std::vector<std::int64_t> batch_sizes_for_worker(std::int64_t global_batch_size, int num_workers,
                                                 int replicas_per_worker, int worker);

/// Cuts each batch of `dataset` into pieces of the given sizes, in turn; a size of 0 gives an empty
/// piece. Rows are numbered over the whole dataset: a piece may join rows of two batches, as tf's
/// rebatch does. With drop_remainder an incomplete last piece is left out.
Dataset rebatch(const Dataset& dataset, std::vector<std::int64_t> sizes, BatchOptions options = {});

/// tf's legacy rule: each batch into num_pieces pieces of ceil(rows / num_pieces) rows, the last
/// ones smaller or empty.
Dataset rebatch_evenly(const Dataset& dataset, int num_pieces);

}  // namespace tutti
