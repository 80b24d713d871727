// Which part of a dataset each of several workers reads.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "tutti/data/dataset.h"

namespace tutti {

/// tf.data.experimental.AutoShardPolicy (without HINT: docs/deviations.md).
enum class AutoShardPolicy {
  /// kFile where the dataset begins at files, at least as many as there are workers; else kData.
  kAuto,
  /// Worker i reads files i, i + workers, ... A worker beyond the number of files has no elements.
  kFile,
  /// Every worker reads everything and keeps elements i, i + workers, ...
  kData,
  /// Every worker sees all elements.
  kOff
};

/// "AUTO", "FILE", "DATA", "OFF", as tf writes them.
std::string_view to_string(AutoShardPolicy policy);

/// What a policy means for a dataset, and why.
struct AutoShardChoice {
  AutoShardPolicy policy = AutoShardPolicy::kOff;  // never kAuto
  std::string reason = {};
};

/// Looks for the beginning of `dataset`: through every decorator, all parts of zip() and
/// concatenate(), and the first dataset of interleave(), down to the sources that read files. One
/// line of the log has the choice of kAuto and the reason, a warning where several workers read
/// everything (kData). Throws kNotFound for kFile when a part
/// begins elsewhere, or at a source that does not tell.
AutoShardChoice choose_auto_shard(const Dataset& dataset, int num_workers, AutoShardPolicy policy);

/// The part of worker `index`, a pipeline like `dataset`, by choose_auto_shard(). kFile exchanges
/// every source of files for one over the worker's files, in their order; what zip() pairs stays
/// paired where the files of one number have as many elements. kData keeps every num_workers-th
/// element behind the last step that is not prefetch(), which reads ahead what was kept; a pass
/// that has elements, but fewer than workers, throws kInvalidArgument: here where their number is
/// known, else at its first element. Caches are filled anew. One worker gets `dataset` under every
/// policy. Throws kInvalidArgument unless 0 <= index < num_workers.
Dataset auto_shard(const Dataset& dataset, int num_workers, int index, AutoShardPolicy policy);

namespace internal {

/// Whether every beginning of the pipeline is a source of files.
bool begins_at_files(const DatasetSource& source);

}  // namespace internal
}  // namespace tutti
