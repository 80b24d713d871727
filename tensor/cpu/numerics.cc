// The fingerprint of what the bits of one replica may depend on.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/numerics.h"

#include "tutti/core/text.h"
#include "tutti/tensor/cpu/registration.h"

namespace tutti {

std::string numerics_fingerprint() {
  return concat("kernels ", kKernelVersion, ", ", internal::cpu_math_description());
}

}  // namespace tutti
