// A function applied to several elements at once, results in order.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "tutti/data/dataset.h"

namespace tutti::internal {

using MapFunction = std::function<Element(const Element&)>;

/// Reads `below` on the thread that calls next(), applies `fn` on `num_threads` threads (started by
/// the first next()) and yields the results in order. An exception of fn or of `below` comes out of
/// next() in its element's place.
std::unique_ptr<ElementIterator> make_parallel_map(std::unique_ptr<ElementIterator> below,
                                                   MapFunction fn, int num_threads);

}  // namespace tutti::internal
