// The secret that the processes of one job share, and the addresses that need one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tutti {

/// 32 to 4,096 bytes that every process of a job knows and nobody else; or none. Copies share one
/// page of memory, which core dumps leave out and which is overwritten when the last copy goes.
/// There is no operator<<: secrets do not get into logs. Threads: any.
class JobSecret {
 public:
  /// No secret: for jobs on the loopback interface.
  JobSecret() = default;
  /// Throws kInvalidArgument for another length.
  explicit JobSecret(std::span<const std::byte> bytes);
  /// New and unguessable.
  static JobSecret generate();
  /// The content of a file. Throws kInvalidArgument naming the path and the remedy when others may
  /// read the file, or it has another length; kNotFound.
  static JobSecret from_file(const std::string& path);
  /// Reads the file that TUTTI_JOB_SECRET_FILE names; none when it is not set.
  static JobSecret from_environment();

  bool is_set() const { return page_ != nullptr; }
  /// Empty: no secret.
  std::span<const std::byte> bytes() const;

 private:
  class Page;
  std::shared_ptr<const Page> page_;
};

/// Paths of PEM files, in place of keys derived from the secret: both sides show a certificate that
/// `authorities` signed.
struct TlsFiles {
  std::string certificate = {};
  std::string private_key = {};
  std::string authorities = {};
  bool is_set() const { return !certificate.empty(); }
};

/// Writes a new secret to `path` with mode 0600. Throws kAlreadyExists, kUnavailable.
void write_job_secret_file(const std::string& path);

/// What allows a server to listen at an address that other machines reach.
struct Exposure {
  bool has_secret = false;
  bool has_tls = false;
  /// For closed laboratory networks.
  bool allow_insecure_network = false;
  /// Also "0.0.0.0", "::" and "": every interface of this machine.
  bool allow_any_address = false;
};

/// "127.x.y.z", "::1", "localhost".
bool is_loopback(std::string_view host);
/// Throws kInvalidArgument, `who` first and with the one-line remedy, when listening at `host`
/// would let strangers in.
void check_exposure(std::string_view who, std::string_view host, const Exposure& exposure);

}  // namespace tutti
