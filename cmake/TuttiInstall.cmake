# Installation: headers, libraries and the package configuration file.
