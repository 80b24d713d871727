// Keys and certificates of a job, derived from its secret or read from files.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/cluster/net/job_secret.h"

namespace tutti::internal {

/// PEM certificate, private key and authorities for mutual TLS.
struct TlsIdentity {
  std::string certificate;
  std::string private_key;
  std::string authorities;
};

/// Name in derived certificates. Both sides expect it, regardless of the address.
inline constexpr const char* kDerivedName = "tutti";

/// Derives the job's authority from the secret (HKDF-SHA256 of RFC 5869 to a P-256 key) and signs a
/// new certificate with it. Every process with the secret derives the same authority, so a
/// certificate signed by it proves knowledge of the secret. Throws kInternal if OpenSSL fails.
TlsIdentity derive_identity(const JobSecret& secret);

/// Reads the files' contents. Throws kNotFound or kUnavailable if a file cannot be read.
TlsIdentity read_identity(const TlsFiles& files);

}  // namespace tutti::internal
