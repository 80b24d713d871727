// More than sixty environments that describe no cluster: each gives its one line.
// SPDX-License-Identifier: Apache-2.0
//
// The table is malformed_clusters.json; tests/tools/tutti_cluster_test.py gives it to a program.
#include <gtest/gtest.h>

#include "core/file.h"
#include "tutti/cluster/multi_worker_util.h"
#include "tutti/cluster/resolver_registry.h"
#include "tutti/core/error.h"
#include "tutti/core/json.h"

namespace tutti {
namespace malformed_clusters_test {

Environment environment_of(const Json& variables) {
  Environment::Variables values;
  for (const auto& [name, value] : variables.as_object()) values[name] = value.as_string();
  return Environment(std::move(values));
}

std::string error_of(const Environment& environment) {
  try {
    validate_cluster(*choose_resolver(environment).resolver);
  } catch (const Error& error) {
    return error.message();
  }
  return "no error";
}

TEST(MalformedClusters, ErrorHasPathExpectedAndFoundInOneLine) {
  const Json table = Json::parse(read_file(TUTTI_MALFORMED_CLUSTERS));
  EXPECT_GE(table.as_array().size(), 60U);
  for (const Json& entry : table.as_array()) {
    const std::string error = error_of(environment_of(entry.at("environment")));
    EXPECT_EQ(error, entry.at("error").as_string()) << entry.at("name").as_string();
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
}

}  // namespace malformed_clusters_test
}  // namespace tutti
