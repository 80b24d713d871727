// Input for replicas: the user's options, the strategy's description of its replicas, and functions
// that split batches.
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

/// Assignment of a global batch's rows to replicas when several workers train.
enum class ShardingRule {
  /// All workers read the dataset in the same order and split each global batch over all replicas
  /// (replica_rows()). Batches and results are bit-identical to those of one process with the same
  /// number of replicas.
  kCanonical,
  /// tf's rule: each worker reads its part of the dataset (AutoShardPolicy) and splits batches with
  /// batch_sizes_for_worker(), or with rebatch_evenly() if the policy is DATA. A single worker
  /// reads the entire dataset and splits it in the same way: 3 replicas get 4, 3 and 3 of 10 rows,
  /// or 4, 4 and 2 with DATA.
  kTensorFlow
};

/// Options for reading a dataset, splitting it and passing it to replicas. Corresponds to
/// tf.distribute.InputOptions.
struct InputOptions {
  /// Number of global batches that a separate thread reads and splits ahead; if 0, the caller's
  /// thread reads. (tf's experimental_per_replica_buffer_size counts per-replica batches.)
  int prefetch = 2;
  /// Neither `sharding_rule` nor `auto_shard_policy` affects datasets created by a function.
  ShardingRule sharding_rule = ShardingRule::kCanonical;
  /// Setting a policy selects kTensorFlow. The default policy of kTensorFlow is AUTO.
  std::optional<AutoShardPolicy> auto_shard_policy = std::nullopt;
  /// If true, each replica's slice is copied to its device when it is yielded. If false, it stays
  /// in host memory, and operations in the step copy the tensors that they use. Corresponds to tf's
  /// experimental_fetch_to_device.
  bool fetch_to_device = true;
  /// If true, distribute_dataset() throws kUnimplemented, because datasets are read on the host.
  /// Corresponds to tf's experimental_place_dataset_on_device.
  bool place_dataset_on_device = false;
};

/// Assignment of a dataset's elements to replicas. kSplit: each element is a global batch, which is
/// split. kWhole: consecutive elements are passed unsplit to consecutive replicas (as in tf's
/// distribute_datasets_from_function).
enum class InputCut { kSplit, kWhole };

/// Row count reported by a worker that has no rows left; see InputPlan::rows_of_workers.
inline constexpr std::int64_t kNoMoreRows = -1;

/// A strategy's description of its replicas.
struct InputPlan {
  std::vector<Device> replica_devices = {};  // devices of this worker's replicas
  std::vector<double> weights = {};          // weights of all workers' replicas; empty if equal
  InputCut cut = InputCut::kSplit;
  InputOptions options = {};

  int num_replicas_in_sync =
      0;                  // total number of replicas across all workers; 0: replica_devices.size()
  int first_replica = 0;  // index of this worker's first replica among all replicas
  int num_workers = 1;
  int worker = 0;
  /// Sends the number of rows that this worker has for the next step (kNoMoreRows once its data has
  /// run out) to all workers. Returns the numbers of all workers in worker order; blocks until all
  /// workers have called it. begin() and ++ call it on the caller's thread once per step, including
  /// the last step, which has no rows. Required if several workers each read their own part, either
  /// by tf's rule or from datasets created by a function. A worker whose data has ended gets empty
  /// batches until no worker has rows.
  std::function<std::vector<std::int64_t>(std::int64_t rows)> rows_of_workers = {};
  /// Called with each global batch from which this worker takes its rows; all workers must read
  /// equal batches. `is_first`: true for the first batch of a pass over the dataset.
  std::function<void(const Element& batch, bool is_first)> note_global_batch = {};
};

/// One input pipeline and its replicas; corresponds to tf.distribute.InputContext.
struct InputContext {
  int num_input_pipelines = 1;
  int input_pipeline_id = 0;
  int num_replicas_in_sync = 1;

  /// Returns global_batch_size / num_replicas_in_sync. Throws kInvalidArgument, naming the two
  /// numbers, if the division leaves a remainder.
  std::int64_t get_per_replica_batch_size(std::int64_t global_batch_size) const;
  /// Returns text such as "input pipeline id 1, total: 3".
  std::string to_string() const;
};

/// One replica for which a value is created; corresponds to
/// tf.distribute.experimental.ValueContext.
struct ValueContext {
  int replica_id_in_sync_group = 0;
  int num_replicas_in_sync = 1;
};

/// Returns the row counts of the replicas for a batch of `rows` rows by the canonical rule: V
/// replicas get ceil(rows / V) rows each until none are left, so the last replicas may get fewer
/// rows or none. tf.distribute.MirroredStrategy uses this rule for datasets that are not read from
/// files.
std::vector<std::int64_t> replica_rows(std::int64_t rows, int num_replicas);

/// Same as replica_rows(), but the counts are proportional to `weights`, rounded by the largest
/// remainder method. Ties go to the lower index.
std::vector<std::int64_t> weighted_replica_rows(std::int64_t rows, std::span<const double> weights);

/// Returns tf's batch_sizes: num_workers * replicas_per_worker sizes that sum to the global batch
/// and differ by at most 1. They are rotated left by worker * replicas_per_worker, so that in each
/// step the sizes of all workers sum to the global batch.
std::vector<std::int64_t> batch_sizes_for_worker(std::int64_t global_batch_size, int num_workers,
                                                 int replicas_per_worker, int worker);

/// Divides the rows of `dataset` into batches of the given sizes, which are used cyclically; a size
/// of 0 yields an empty batch. A new batch may combine rows from two old batches, as in tf's
/// rebatch. With drop_remainder, an incomplete last batch is dropped.
Dataset rebatch(const Dataset& dataset, std::vector<std::int64_t> sizes, BatchOptions options = {});

/// Splits each batch into num_pieces batches of ceil(rows / num_pieces) rows (tf's legacy rule).
/// The last batches may be smaller or empty.
Dataset rebatch_evenly(const Dataset& dataset, int num_pieces);

}  // namespace tutti
