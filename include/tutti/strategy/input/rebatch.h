// How a global batch is cut into one piece per replica.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tutti/data/dataset.h"

namespace tutti {

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
