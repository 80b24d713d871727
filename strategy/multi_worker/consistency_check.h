// Compares inputs, settings and writes of workers; the error names what differs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "tutti/core/json.h"
#include "tutti/core/source_location.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// Notes of one worker since the workers compared theirs last: its input, its settings, and what it
/// wrote to variables outside steps. A digest of the notes travels with exchanges that a step has
/// anyway; if digests differ, all workers exchange the notes, and each throws the same error.
/// Thread-safe.
class ConsistencyCheck {
 public:
  enum class Kind {
    kGlobalBatch,  // "global batches", and their rows
    kFirstBatch,   // a component of elements, and its first rows in an epoch
    kOptimizer,    // "learning rates of 'sgd'", and the number that a step takes
    kWrite,        // a variable, and the operand of a write outside steps
    kValue         // a variable, and its value
  };

  /// Stands between digests of a worker's own copies of a value, which differ.
  static constexpr const char* kBetweenComponents = "/";

  /// Adds a note about `subject`: `bytes` count, and `shown` stands for them in messages ("": a
  /// digest does). Several notes about one subject are compared in their order.
  void note(Kind kind, std::string_view subject, std::span<const std::byte> bytes,
            std::string_view shown = {});
  /// Same as note(), but of a number, which messages show in front of `unit`.
  void note_number(Kind kind, std::string_view subject, double number, const char* unit = "");
  /// Returns eight bytes that are equal for equal notes; 0 if there are none.
  std::uint64_t digest() const;
  /// Removes all notes: they were compared, or the workers were connected again.
  void clear();

  /// Returns the notes as other workers read them.
  Json notes() const;
  /// `notes`: those of each worker. Throws an error that names what differs and on which workers:
  /// kInvalidArgument for input and settings, kFailedPrecondition for writes, kDataLoss for values.
  /// Settings and values that only some workers have are not compared.
  static void require_alike(std::span<const std::string> notes);

 private:
  struct Note {
    std::uint64_t digest = 0;  // of all notes about the subject
    int count = 0;
    std::optional<double> number;  // of the last one, as what follows
    std::string shown;             // behind the number
    SourceLocation where;          // of a write: the user's line, if known
  };
  using Subject = std::pair<Kind, std::string>;

  void add(Kind kind, std::string_view subject, std::uint64_t digest, std::optional<double> number,
           std::string_view shown);

  mutable Mutex mutex_;
  std::map<Subject, Note> notes_ TUTTI_GUARDED_BY(mutex_);
};

/// Returns the digest of `bytes` as a number.
std::uint64_t digest_number(std::span<const std::byte> bytes);

}  // namespace tutti::internal
