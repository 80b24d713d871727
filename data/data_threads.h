// A function applied to several elements at once, results in order; reading ahead.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "tutti/data/dataset.h"

namespace tutti::internal {

/// A function of an element and of its number: how many elements of the whole pass, over all shards
/// of it, came before it, handed out or left out by skip().
using NumberedFunction = std::function<Element(const Element&, std::uint64_t number)>;

using MakeFunction = std::function<NumberedFunction(std::uint64_t epoch)>;

/// Whether a function gives as many rows as it gets: then what is known of batches stays known.
enum class Rows { kKept, kUnknown };

/// The elements of `dataset`, put through the function that `make` gives for the epoch. One call at
/// once: on the thread that calls next(). Throws kInvalidArgument naming `who` for less.
Dataset map_numbered(const Dataset& dataset, MakeFunction make, int num_parallel_calls,
                     const char* who, Rows rows = Rows::kUnknown);

/// Reads `below` on the thread that calls next(), applies `fn` on `num_threads` threads (started by
/// the first next()) and yields the results in order. An exception of fn or of `below` comes out of
/// next() in its element's place.
std::unique_ptr<ElementIterator> make_parallel_map(std::unique_ptr<ElementIterator> below,
                                                   NumberedFunction fn, int num_threads);

/// Whether `source` is what Dataset::prefetch() made: the elements below it, only read earlier.
bool only_reads_ahead(const DatasetSource& source);

}  // namespace tutti::internal
