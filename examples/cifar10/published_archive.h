// Comparison of an archive with the one that the CIFAR-10 home page offers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

namespace tutti::examples::cifar10 {

/// Identity of an archive: the number of bytes and the digest, as given on the home page.
struct ArchiveIdentity {
  std::int64_t bytes = 0;
  std::string md5 = {};  // 32 hexadecimal digits
  bool operator==(const ArchiveIdentity&) const = default;
};

/// cifar-10-binary.tar.gz, as published.
inline const ArchiveIdentity kPublishedArchive{170'052'171, "c32a1d4ab5d03f1284b67883e8d87530"};

/// Reads to the end and computes MD5 (RFC 1321).
ArchiveIdentity identity_of(std::istream& in);

/// Returns "170052171 bytes, MD5 c32a...: the published archive", or the expected identity.
std::string describe(const ArchiveIdentity& archive);

}  // namespace tutti::examples::cifar10
