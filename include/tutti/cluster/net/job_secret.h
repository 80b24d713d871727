// The secret shared by the processes of a job, and the addresses that require one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tutti {

/// Secret of 32 to 4,096 bytes that only the processes of one job know; may be unset. Copies share
/// a page that is excluded from core dumps and overwritten when the last copy is destroyed. There
/// is no operator<<, so that secrets do not get into logs. Thread-safe.
class JobSecret {
 public:
  /// Creates an unset secret, for jobs on the loopback interface.
  JobSecret() = default;
  /// Throws kInvalidArgument if the length is out of range.
  explicit JobSecret(std::span<const std::byte> bytes);
  /// Generates a random secret.
  static JobSecret generate();
  /// Reads the secret from a file. Throws kNotFound if it does not exist, and kInvalidArgument,
  /// with the path and a remedy, if other users can read it or its length is out of range.
  static JobSecret from_file(const std::string& path);
  /// Reads the file named by TUTTI_JOB_SECRET_FILE; returns an unset secret if the variable is not
  /// set or empty.
  static JobSecret from_environment();

  bool is_set() const { return page_ != nullptr; }
  /// Returns the bytes of the secret; empty if there is none.
  std::span<const std::byte> bytes() const;

 private:
  class Page;
  std::shared_ptr<const Page> page_;
};

/// Paths to PEM files that replace keys derived from the secret. Both sides present a certificate
/// signed by `authorities`.
struct TlsFiles {
  std::string certificate = {};
  std::string private_key = {};
  std::string authorities = {};
  bool is_set() const { return !certificate.empty(); }
};

/// Writes a new secret to a new file `path` with mode 0600. Throws kAlreadyExists if the file
/// exists, and kUnavailable if it cannot be written.
void write_job_secret_file(const std::string& path);

/// Conditions for listening on an address that other machines can reach.
struct Exposure {
  bool has_secret = false;
  bool has_tls = false;
  /// For closed laboratory networks: if true, neither a secret nor TLS is required.
  bool allow_insecure_network = false;
  /// Allows "0.0.0.0", "::" and "", which mean every interface of this machine.
  bool allow_any_address = false;
};

/// Returns true for "127.x.y.z", "::1" and "localhost".
bool is_loopback(std::string_view host);
/// Throws kInvalidArgument, beginning with `who` and including a one-line remedy, if listening on
/// `host` would admit unauthenticated peers.
void check_exposure(std::string_view who, std::string_view host, const Exposure& exposure);

}  // namespace tutti
