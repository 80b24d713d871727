// Trains the CIFAR-10 tutorial's network with one tower per GPU and shared variables.
// SPDX-License-Identifier: Apache-2.0
#include "examples/cifar10/training_run.h"

int main(int argc, char** argv) {
  return tutti::examples::cifar10::run_training(argc, argv, /*with_towers=*/true);
}
