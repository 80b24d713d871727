// The recorder of each thread.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/step_recorder.h"

#include <utility>

namespace tutti {
namespace {

thread_local StepRecorder* current_recorder = nullptr;

}  // namespace

StepRecorder* StepRecorder::current() { return current_recorder; }

StepRecorderScope::StepRecorderScope(StepRecorder* recorder)
    : previous_(std::exchange(current_recorder, recorder)) {}

StepRecorderScope::~StepRecorderScope() { current_recorder = previous_; }

}  // namespace tutti
