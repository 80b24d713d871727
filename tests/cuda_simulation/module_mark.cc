// Marks this module as one that needs no GPU driver, because its GPUs are simulated.
// SPDX-License-Identifier: Apache-2.0

// The mark is a function, because AddressSanitizer rejects a variable that is defined twice, as
// happens if a program linked with the same objects also opens the module.
extern "C" __attribute__((visibility("default"))) void tutti_backend_is_simulated() {}
