# Conan takes every library from Debian 12 instead of building its own.
include(default)
[settings]
build_type=Release
compiler.cppstd=20
[platform_requires]
cli11/2.3.2
grpc/1.54.3
isa-l/2.30.0
libjpeg-turbo/3.0.0
libpng/1.6.39
nlohmann_json/3.11.2
onednn/2.6.3
openssl/3.0.17
protobuf/3.21.12
spdlog/1.10.0
xxhash/0.8.1
zlib/1.2.13
