// Library that resembles a PJRT plugin, but has an unsupported major version or, by default, a
// table of functions that is too short.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/xla/pjrt_api.h"

namespace {

#ifdef TUTTI_OTHER_MAJOR_VERSION
constexpr tutti::internal::PjrtApi kApi{4096, nullptr, 24, nullptr, 1, 0};
#else
constexpr tutti::internal::PjrtApi kApi{40 + 8 * 30, nullptr, 24, nullptr, 0, 5};
#endif

}  // namespace

extern "C" const tutti::internal::PjrtApi* GetPjrtApi() { return &kApi; }
