// Credentials from files, and limits.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/rpc/grpc/grpc_options.h"

#include "tutti/core/file.h"

namespace tutti::internal {

std::shared_ptr<grpc::ServerCredentials> server_credentials(const TlsFiles& files) {
  if (!files.is_set()) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = read_file(files.authorities);
  options.pem_key_cert_pairs.push_back(
      {read_file(files.private_key), read_file(files.certificate)});
  return grpc::SslServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> channel_credentials(const TlsFiles& files) {
  if (!files.is_set()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = read_file(files.authorities);
  options.pem_private_key = read_file(files.private_key);
  options.pem_cert_chain = read_file(files.certificate);
  return grpc::SslCredentials(options);
}

grpc::ChannelArguments channel_arguments() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kLongestEnvelope);
  arguments.SetMaxSendMessageSize(kLongestEnvelope);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // members are reached directly
  // Attempts that follow one another get connections of their own.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  return arguments;
}

}  // namespace tutti::internal
