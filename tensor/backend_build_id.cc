// Build identifier. The host rejects a CUDA module with a different one (cmake/TuttiCuda.cmake).
// SPDX-License-Identifier: Apache-2.0
#include "tensor/device_backend.h"

namespace tutti {

const char* backend_build_id() { return TUTTI_BACKEND_BUILD_ID; }

}  // namespace tutti
