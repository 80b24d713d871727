// The innermost scope of each thread.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/autograd/autocast.h"

#include <utility>

namespace tutti {
namespace {

std::optional<DType>& current_type() {
  thread_local std::optional<DType> dtype;
  return dtype;
}

}  // namespace

AutocastScope::AutocastScope(std::optional<DType> dtype)
    : previous_(std::exchange(current_type(), dtype)) {}
AutocastScope::~AutocastScope() { current_type() = previous_; }
std::optional<DType> AutocastScope::current() { return current_type(); }

}  // namespace tutti
