// Server of variables for clients in other languages. Prints its target and the shard of the
// variable "w"; ends at the end of its standard input.
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
