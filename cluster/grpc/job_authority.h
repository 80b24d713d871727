// Keys and certificates of a job, derived from its secret or read from files.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/cluster/net/job_secret.h"

namespace tutti::internal {

/// One side of mutual TLS, as PEM texts.
struct TlsIdentity {
  std::string certificate;
  std::string private_key;
  std::string authorities;
};

/// The name in derived certificates, which both sides expect whatever the address is.
inline constexpr const char* kDerivedName = "tutti";

/// Every process that knows the secret derives the same authority (HKDF-SHA256 of RFC 5869 to a key
/// on P-256) and signs a certificate of its own with it: who shows one that the authority signed
/// knows the secret. Throws kInternal where OpenSSL fails.
TlsIdentity derive_identity(const JobSecret& secret);

/// Throws kNotFound, kUnavailable for files that cannot be read.
TlsIdentity read_identity(const TlsFiles& files);

}  // namespace tutti::internal
