// Work on threads of the data pipeline, and waiting for them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "tutti/core/sync.h"
#include "tutti/data/dataset.h"

namespace tutti::internal {

// A function applied to several elements at once, results in order.

/// A function of an element and of its number: how many elements of the pass came before it,
/// handed out or left out by skip().
using NumberedFunction = std::function<Element(const Element&, std::uint64_t number)>;

/// Applies `fn` to the elements of `below`. One call at once: on the thread that calls next().
std::unique_ptr<ElementIterator> make_map(std::unique_ptr<ElementIterator> below,
                                          NumberedFunction fn, int num_parallel_calls);

/// Reads `below` on the thread that calls next(), applies `fn` on `num_threads` threads (started by
/// the first next()) and yields the results in order. An exception of fn or of `below` comes out of
/// next() in its element's place.
std::unique_ptr<ElementIterator> make_parallel_map(std::unique_ptr<ElementIterator> below,
                                                   NumberedFunction fn, int num_threads);

// Waiting for a data thread: long, but not for ever and not in silence.

/// Waits until ready(). Every minute without it logs a warning naming `who`; after half an hour
/// throws kDeadlineExceeded: the function that should yield an element hangs. `mutex` is held by
/// the caller.
void wait_for_input(CondVar& condition, Mutex& mutex, std::string_view who,
                    const std::function<bool()>& ready) TUTTI_REQUIRES(mutex);

/// Waits until ready(), however long: a data thread that has nothing to do until its consumer comes
/// back or stops it.
void wait_for_work(CondVar& condition, Mutex& mutex, const std::function<bool()>& ready)
    TUTTI_REQUIRES(mutex);

}  // namespace tutti::internal
