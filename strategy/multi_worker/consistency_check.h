// Comparison of inputs, settings and writes between workers; the error names the difference.
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

/// Notes of one worker since the last comparison: its input, its settings, and its writes to
/// variables outside steps. Exchanges that a step makes anyway carry a digest of the notes. If
/// digests differ, all workers exchange the notes, and each throws the same error. Thread-safe.
class ConsistencyCheck {
 public:
  enum class Kind {
    kGlobalBatch,  // the subject is "global batches"; the note contains their numbers of rows
    kFirstBatch,   // subject: a component of the dataset; note: its first rows in an epoch
    kOptimizer,    // subject "learning rates of 'sgd'"; note: the rate that a step uses
    kWrite,        // subject: a variable; note: the operand of a write outside steps
    kValue         // subject: a variable; note: its value
  };

  /// Separator between the digests of a variable's components; the components are listed only if
  /// they differ.
  static constexpr const char* kBetweenComponents = "/";

  /// Adds a note about `subject`. Comparisons use `bytes`; messages show `shown` or, if it is
  /// empty, the digest of `bytes`. Several notes about one subject are compared in the order in
  /// which they were added.
  void note(Kind kind, std::string_view subject, std::span<const std::byte> bytes,
            std::string_view shown = {});
  /// Same as note(), but for a number; messages show it followed by `unit`.
  void note_number(Kind kind, std::string_view subject, double number, const char* unit = "");
  /// Returns an eight-byte digest that is equal for equal notes; 0 if there are none.
  std::uint64_t digest() const;
  /// Removes all notes, after a comparison or a reconnect.
  void clear();

  /// Returns the notes in the form in which they are sent to other workers.
  Json notes() const;
  /// Throws an error that names the differences and their workers. `notes`: the results of notes(),
  /// by worker. Throws kInvalidArgument for input and settings, kFailedPrecondition for writes, and
  /// kDataLoss for values. Settings and values that only some workers have are not compared.
  static void require_alike(std::span<const std::string> notes);

 private:
  struct Note {
    std::uint64_t digest = 0;  // digest of all notes about the subject
    int count = 0;
    std::optional<double> number;  // number in the last note, if it has one
    std::string shown;             // text of the last note; messages show it after the number
    SourceLocation where;          // the user's line, if the last note is a write
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
