// What the configuration step told the compiler (tools/CMakeLists.txt).
// SPDX-License-Identifier: Apache-2.0
#include "tools/build_info.h"

namespace tutti::tools {

const BuildInfo& build_info() {
  static constexpr BuildInfo kInfo{TUTTI_VERSION,        TUTTI_BUILD_TYPE,   TUTTI_COMPILER,
                                   TUTTI_ONEDNN_VERSION, TUTTI_ZLIB_VERSION, TUTTI_PNG_VERSION,
                                   TUTTI_JPEG_VERSION,   TUTTI_SANITIZERS};
  return kInfo;
}

}  // namespace tutti::tools
