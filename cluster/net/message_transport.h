// A Transport over a mesh of byte streams.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "tutti/cluster/net/mesh.h"
#include "tutti/cross_device_ops/transport.h"

namespace tutti::internal {

/// Closes the mesh when destroyed. `name` is Transport::name(); `memory` may be null.
std::shared_ptr<Transport> message_transport(std::string name, std::shared_ptr<Mesh> mesh,
                                             std::shared_ptr<HostMemory> memory = nullptr);

}  // namespace tutti::internal
