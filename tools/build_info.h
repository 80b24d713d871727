// What this build of tutti contains.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace tutti::tools {

/// Empty texts: not in this build.
struct BuildInfo {
  std::string_view version;
  std::string_view build_type;
  std::string_view compiler;
  std::string_view onednn_version;
  std::string_view zlib_version;
  std::string_view png_version;
  std::string_view jpeg_version;
  std::string_view sanitizers;
};

const BuildInfo& build_info();

}  // namespace tutti::tools
