// Whether an archive is the one that the CIFAR-10 home page offers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

namespace tutti::examples::cifar10 {

/// What tells archives apart: the number of bytes, and the digest that the home page names.
struct ArchiveIdentity {
  std::int64_t bytes = 0;
  std::string md5 = {};  // 32 hexadecimal digits
  bool operator==(const ArchiveIdentity&) const = default;
};

/// cifar-10-binary.tar.gz, as published.
inline const ArchiveIdentity kPublishedArchive{170'052'171, "c32a1d4ab5d03f1284b67883e8d87530"};

/// Reads to the end (RFC 1321).
ArchiveIdentity identity_of(std::istream& in);

/// "170052171 bytes, MD5 c32a...: the published archive", or what was expected instead.
std::string describe(const ArchiveIdentity& archive);

}  // namespace tutti::examples::cifar10
