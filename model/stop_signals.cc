// Handlers for SIGINT and SIGTERM that let training end after the current step.
// SPDX-License-Identifier: Apache-2.0
#include "model/stop_signals.h"

#include <csignal>
#include <cstddef>

namespace tutti::internal {
namespace {

constexpr std::array kStopSignals = {SIGINT, SIGTERM};

volatile std::sig_atomic_t requested_signal = 0;
volatile std::sig_atomic_t last_signal = 0;
int num_objects = 0;

void on_stop_signal(int signal) {
  requested_signal = signal;
  last_signal = signal;
}

}  // namespace

StopSignals::StopSignals() {
  if (num_objects++ == 0) {
    requested_signal = 0;
    last_signal = 0;
  }
  for (std::size_t i = 0; i < kStopSignals.size(); ++i) {
    earlier_[i] = std::signal(kStopSignals[i], on_stop_signal);
  }
}

StopSignals::~StopSignals() {
  for (std::size_t i = 0; i < kStopSignals.size(); ++i) std::signal(kStopSignals[i], earlier_[i]);
  --num_objects;
}

int StopSignals::requested() { return requested_signal; }
void StopSignals::acknowledge() { requested_signal = 0; }

std::string StopSignals::last_name() {
  if (last_signal == 0) return "a signal to another worker";
  return last_signal == SIGINT ? "SIGINT" : "SIGTERM";
}

}  // namespace tutti::internal
