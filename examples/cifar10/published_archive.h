// Comparison of an archive with the archive published on the CIFAR-10 home page.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

namespace tutti::examples::cifar10 {

/// Size and digest of an archive, as stated on the data set's home page.
struct ArchiveIdentity {
  std::int64_t bytes = 0;
  std::string md5 = {};  // 32 hexadecimal digits
  bool operator==(const ArchiveIdentity&) const = default;
};

/// Size and MD5 digest of the published cifar-10-binary.tar.gz.
inline const ArchiveIdentity kPublishedArchive{170'052'171, "c32a1d4ab5d03f1284b67883e8d87530"};

/// Reads a stream to its end. Returns the number of bytes and the MD5 digest (RFC 1321).
ArchiveIdentity identity_of(std::istream& in);

/// Returns "170052171 bytes, MD5 c32a...: the published archive"; for any other archive, the text
/// also contains the expected size and digest.
std::string describe(const ArchiveIdentity& archive);

}  // namespace tutti::examples::cifar10
