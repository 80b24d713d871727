// Words that the writer and the reader of manifests share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace tutti::internal {

inline constexpr std::string_view kManifestFormat = "tutti checkpoint";
inline constexpr std::int64_t kManifestVersion = 1;
inline constexpr std::string_view kManifestHash = "xxh3-128";
/// Before and after the checksum at the end of the text.
inline constexpr std::string_view kManifestTail = ",\n \"checksum\": \"";
inline constexpr std::string_view kManifestEnd = "\"\n}\n";
inline constexpr std::size_t kChecksumDigits = 32;

}  // namespace tutti::internal
