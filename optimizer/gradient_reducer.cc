// The current gradient reducer of a thread.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/gradient_reducer.h"

namespace tutti {
namespace {
thread_local GradientReducer* current_reducer = nullptr;
}  // namespace

GradientReducer* GradientReducer::current() { return current_reducer; }

GradientReducerScope::GradientReducerScope(GradientReducer* reducer) : previous_(current_reducer) {
  current_reducer = reducer;
}

GradientReducerScope::~GradientReducerScope() { current_reducer = previous_; }

}  // namespace tutti
