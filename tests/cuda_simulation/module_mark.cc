// Says that this module needs no driver: its GPUs are simulated.
// SPDX-License-Identifier: Apache-2.0

// A function: a program that is linked with the same objects may open the module, too, and
// AddressSanitizer refuses a variable that is there twice.
extern "C" __attribute__((visibility("default"))) void tutti_backend_is_simulated() {}
