// A server of variables that clients of other languages call. Prints its target and the shard of
// the variable "w"; ends with its standard input.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <iostream>

#include "strategy/parameter_server/protocol/operation.h"
#include "tutti/strategy/parameter_server/session/server.h"

int main() {
  const auto server = tutti::Server::create_local_server();
  std::cout << "server=" << server->target() << " shard=" << tutti::internal::shard_id("w", 0)
            << std::endl;
  while (std::getchar() != EOF) {
  }
  return 0;
}
