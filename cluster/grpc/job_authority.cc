// Derives keys from a secret, and creates certificates for these keys, with OpenSSL.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/grpc/job_authority.h"

#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/obj_mac.h>
#include <openssl/param_build.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <array>
#include <memory>
#include <string_view>

#include "core/file.h"
#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

constexpr std::string_view kLabel = "tutti job authority P-256";
// 16 bytes longer than a scalar, so that the remainder modulo the order is practically uniform.
using ScalarBytes = std::array<unsigned char, 48>;

template <auto free_it>
struct Free {
  void operator()(auto* pointer) const { free_it(pointer); }
};
using Number = std::unique_ptr<BIGNUM, Free<BN_clear_free>>;
using NumberContext = std::unique_ptr<BN_CTX, Free<BN_CTX_free>>;
using Group = std::unique_ptr<EC_GROUP, Free<EC_GROUP_free>>;
using Point = std::unique_ptr<EC_POINT, Free<EC_POINT_free>>;
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using KeyContext = std::unique_ptr<EVP_PKEY_CTX, Free<EVP_PKEY_CTX_free>>;
using ParameterBuilder = std::unique_ptr<OSSL_PARAM_BLD, Free<OSSL_PARAM_BLD_free>>;
using Parameters = std::unique_ptr<OSSL_PARAM, Free<OSSL_PARAM_free>>;
using Derivation = std::unique_ptr<EVP_KDF, Free<EVP_KDF_free>>;
using DerivationContext = std::unique_ptr<EVP_KDF_CTX, Free<EVP_KDF_CTX_free>>;
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Free<X509_EXTENSION_free>>;
using Text = std::unique_ptr<BIO, Free<BIO_free_all>>;

void check(bool is_done, std::string_view what) {
  if (is_done) return;
  std::array<char, 256> reason{};
  ERR_error_string_n(ERR_get_error(), reason.data(), reason.size());
  fail(ErrorCode::kInternal, "job authority: OpenSSL failed in ", what, ": ", reason.data());
}

ScalarBytes derive(std::span<const std::byte> secret) {
  const Derivation hkdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  check(hkdf != nullptr, "EVP_KDF_fetch");
  const DerivationContext context(EVP_KDF_CTX_new(hkdf.get()));
  std::string digest = "SHA256", label(kLabel);
  std::string key(reinterpret_cast<const char*>(secret.data()), secret.size());
  const std::array<OSSL_PARAM, 4> parameters{
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest.data(), 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, key.data(), key.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, label.data(), label.size()),
      OSSL_PARAM_construct_end()};
  ScalarBytes bytes{};
  const int done = EVP_KDF_derive(context.get(), bytes.data(), bytes.size(), parameters.data());
  OPENSSL_cleanse(key.data(), key.size());
  check(done == 1, "EVP_KDF_derive");
  return bytes;
}

Key key_of_authority(const JobSecret& secret) {
  ScalarBytes bytes = derive(secret.bytes());
  const NumberContext numbers(BN_CTX_secure_new());
  const Group group(EC_GROUP_new_by_curve_name(NID_X9_62_prime256v1));
  check(numbers && group, "EC_GROUP_new_by_curve_name");
  const Number wide(BN_bin2bn(bytes.data(), static_cast<int>(bytes.size()), nullptr));
  OPENSSL_cleanse(bytes.data(), bytes.size());
  const Number most(BN_dup(EC_GROUP_get0_order(group.get())));
  const Number scalar(BN_secure_new());
  const Point point(EC_POINT_new(group.get()));
  // Computes a scalar in [1, order - 1].
  check(wide && most && scalar && point && BN_sub_word(most.get(), 1) == 1 &&
            BN_nnmod(scalar.get(), wide.get(), most.get(), numbers.get()) == 1 &&
            BN_add_word(scalar.get(), 1) == 1 &&
            EC_POINT_mul(group.get(), point.get(), scalar.get(), nullptr, nullptr, numbers.get()) ==
                1,
        "EC_POINT_mul");
  std::array<unsigned char, 65> place{};
  check(EC_POINT_point2oct(group.get(), point.get(), POINT_CONVERSION_UNCOMPRESSED, place.data(),
                           place.size(), numbers.get()) == place.size(),
        "EC_POINT_point2oct");
  const ParameterBuilder builder(OSSL_PARAM_BLD_new());
  check(OSSL_PARAM_BLD_push_utf8_string(builder.get(), OSSL_PKEY_PARAM_GROUP_NAME, "prime256v1",
                                        0) == 1 &&
            OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_PRIV_KEY, scalar.get()) == 1 &&
            OSSL_PARAM_BLD_push_octet_string(builder.get(), OSSL_PKEY_PARAM_PUB_KEY, place.data(),
                                             place.size()) == 1,
        "OSSL_PARAM_BLD_push");
  const Parameters parameters(OSSL_PARAM_BLD_to_param(builder.get()));
  const KeyContext context(EVP_PKEY_CTX_new_from_name(nullptr, "EC", nullptr));
  EVP_PKEY* key = nullptr;
  check(parameters && context && EVP_PKEY_fromdata_init(context.get()) == 1 &&
            EVP_PKEY_fromdata(context.get(), &key, EVP_PKEY_KEYPAIR, parameters.get()) == 1,
        "EVP_PKEY_fromdata");
  return Key(key);
}

void add_extension(X509* certificate, X509* issuer, int kind, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value));
  check(extension && X509_add_ext(certificate, extension.get(), -1) == 1, "X509_add_ext");
}

void set_name(X509_NAME* name, const char* text) {
  check(X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                                   reinterpret_cast<const unsigned char*>(text), -1, -1, 0) == 1,
        "X509_NAME_add_entry_by_txt");
}

/// Creates a certificate. If `issuer` is null, creates the authority's own certificate, which is
/// self-signed.
Certificate make_certificate(EVP_PKEY* key, const char* name, X509* issuer, EVP_PKEY* issuer_key) {
  Certificate certificate(X509_new());
  X509* const c = certificate.get();
  std::uint64_t serial = 1;
  if (issuer != nullptr) {
    check(RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof(serial)) == 1, "RAND_bytes");
    serial |= 1;
  }
  // Certificates do not expire, because the machines' clocks may differ and a new job has a new
  // secret.
  check(X509_set_version(c, X509_VERSION_3) == 1 &&
            ASN1_INTEGER_set_uint64(X509_get_serialNumber(c), serial) == 1 &&
            ASN1_TIME_set_string_X509(X509_getm_notBefore(c), "20000101000000Z") == 1 &&
            ASN1_TIME_set_string_X509(X509_getm_notAfter(c), "21991231235959Z") == 1 &&
            X509_set_pubkey(c, key) == 1,
        "X509_set");
  set_name(X509_get_subject_name(c), name);
  X509_NAME* const by = X509_get_subject_name(issuer == nullptr ? c : issuer);
  check(X509_set_issuer_name(c, by) == 1, "X509_set_issuer_name");
  X509* const signer = issuer == nullptr ? c : issuer;
  add_extension(c, signer, NID_subject_key_identifier, "hash");
  if (issuer == nullptr) {
    add_extension(c, signer, NID_basic_constraints, "critical,CA:TRUE");
    add_extension(c, signer, NID_key_usage, "critical,keyCertSign");
  } else {
    add_extension(c, signer, NID_subject_alt_name, concat("DNS:", kDerivedName).c_str());
    add_extension(c, signer, NID_ext_key_usage, "serverAuth,clientAuth");
    add_extension(c, signer, NID_authority_key_identifier, "keyid:always");
  }
  check(X509_sign(c, issuer_key, EVP_sha256()) > 0, "X509_sign");
  return certificate;
}

std::string text_of(const Text& memory) {
  char* begin = nullptr;
  const long size = BIO_get_mem_data(memory.get(), &begin);
  return std::string(begin, static_cast<std::size_t>(size));
}

std::string pem_of(X509* certificate) {
  const Text memory(BIO_new(BIO_s_mem()));
  check(PEM_write_bio_X509(memory.get(), certificate) == 1, "PEM_write_bio_X509");
  return text_of(memory);
}

std::string pem_of(EVP_PKEY* key) {
  const Text memory(BIO_new(BIO_s_secmem()));
  check(PEM_write_bio_PrivateKey(memory.get(), key, nullptr, nullptr, 0, nullptr, nullptr) == 1,
        "PEM_write_bio_PrivateKey");
  return text_of(memory);
}

}  // namespace

TlsIdentity derive_identity(const JobSecret& secret) {
  const Key authority_key = key_of_authority(secret);
  const Certificate authority =
      make_certificate(authority_key.get(), "tutti job authority", nullptr, authority_key.get());
  const Key key(EVP_EC_gen("P-256"));
  check(key != nullptr, "EVP_EC_gen");
  const Certificate certificate =
      make_certificate(key.get(), kDerivedName, authority.get(), authority_key.get());
  return {pem_of(certificate.get()), pem_of(key.get()), pem_of(authority.get())};
}

TlsIdentity read_identity(const TlsFiles& files) {
  return {read_file(files.certificate), read_file(files.private_key), read_file(files.authorities)};
}

}  // namespace tutti::internal
