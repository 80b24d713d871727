// Evaluates checkpoints of the CIFAR-10 tutorial's network, repeatedly or once.
// SPDX-License-Identifier: Apache-2.0
#include "examples/cifar10/evaluation.h"

int main(int argc, char** argv) { return tutti::examples::cifar10::run_evaluation(argc, argv); }
