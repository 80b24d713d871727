// Rows into a batch.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

#include "tutti/data/element.h"

namespace tutti::internal {

/// One element whose component i holds component i of every given element along a new first axis: n
/// elements of shape [...] give [n, ...]. At least one element. Throws kInvalidArgument naming
/// `who`, the component and both shapes (or dtypes, devices, name lists) where two elements differ.
Element stack_elements(std::span<const Element> elements, std::string_view who);

}  // namespace tutti::internal
