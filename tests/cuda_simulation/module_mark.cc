// Says that this module needs no driver: its GPUs are simulated.
// SPDX-License-Identifier: Apache-2.0

extern "C" {
__attribute__((visibility("default"))) extern const int tutti_backend_is_simulated;
const int tutti_backend_is_simulated = 1;
}
