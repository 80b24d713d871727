// Names of types, and names made of them as Keras does.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <typeinfo>

namespace tutti::internal {

/// "Conv2D" for tutti::Conv2D: without namespaces and template arguments.
std::string plain_type_name(const std::type_info& type);
/// "max_pooling2d" for "MaxPooling2D", "batch_normalization" for "BatchNormalization".
std::string snake_case(std::string_view type_name);

}  // namespace tutti::internal
