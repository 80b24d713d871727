// Why a call ended, as another rank told it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "tutti/core/error.h"

namespace tutti::internal {

/// In the text of every error about ranks that did not come in time.
inline constexpr std::string_view kMissing = " before the deadline; ";

/// Whether an error says that two ranks' calls differ.
bool is_mismatch(const Error& error);

/// Reasons of other ranks come as kAborted with their text, which says what it was: the same error
/// with the code that the rank threw that found out, so that all ranks throw the same.
Error as_it_was(const Error& error);

}  // namespace tutti::internal
